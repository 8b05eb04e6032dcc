"""The arguments of torchrun on each of several nodes, once all have joined."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_launcher.torch.node import join
from amp_launcher.world import rendezvous


@pytest.fixture
def addresses() -> tuple[str, ...]:
    """Of two nodes; nothing listens there yet."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other))


def test_all_nodes_get_the_address_of_the_first_once_all_have_joined(addresses: tuple[str, ...]) -> None:
    with ThreadPoolExecutor() as pool:
        words = list(pool.map(lambda number: join(addresses, number), range(2)))
    port = addresses[0].split(":")[1]
    for number, given in enumerate(words):
        assert given == ("--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}")


def test_a_node_that_never_starts_is_named(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.3)
    with pytest.raises(SystemExit) as ended:
        join(addresses, 0)
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"worker 1 at {addresses[1]} did not join within 0.3 s; 1 of 2 did\nrank")
