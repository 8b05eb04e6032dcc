"""How TensorFlow's processes come together, and what is said where they don't."""

from __future__ import annotations

import json
import socket

import pytest

from amp_launcher.recipes.mnist import train_tensorflow as mnist
from amp_launcher.tensorflow import devices, loop
from amp_launcher.world import rendezvous
from amp_launcher.world.world import PlacementError


@pytest.fixture
def ports() -> list[int]:
    """Two, on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [server.getsockname()[1] for server in (one, other)]


def config(ports: list[int], index: int) -> str:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (0, "mnist: worker 1 at 127.0.0.1:{1} did not join within 0.5 s; 1 of 2 did\nrank  host"),
        (1, "mnist: worker 0 at 127.0.0.1:{0} did not answer worker 1 on "),
    ],
)
def test_a_worker_that_never_starts_is_named_after_a_bounded_wait(tmp_path, monkeypatch, capsys, ports, index, message):
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.5)
    monkeypatch.setenv("TF_CONFIG", config(ports, index))
    assert loop.main("mnist", mnist.train, ["data=digits", "steps=2", f"run={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err.startswith(message.format(*ports))
    assert not (tmp_path / "run").exists()


def test_fewer_workers_than_planned_are_refused_before_any_waits(ports):
    with pytest.raises(PlacementError, match="TF_CONFIG names 2 processes, and 3 were planned"):
        devices.join("cpu", 3, {"TF_CONFIG": config(ports, 0)})
