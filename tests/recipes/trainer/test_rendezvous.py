"""Rendezvous of processes: each is a thread here, on sockets of its own."""

from __future__ import annotations

import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.trainer import rendezvous
from recipes.trainer.rendezvous import RankInfos, join
from recipes.trainer.world import PlacementError, RankInfo


@pytest.fixture
def addresses() -> list[str]:
    """Of three workers; nothing listens there yet."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    free = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return free


@pytest.fixture
def start() -> Any:
    """A function that has one worker join in a thread."""
    with ThreadPoolExecutor(4) as pool:

        def begin(rank: int, addresses: list[str], **how: Any) -> Future[list[RankInfos]]:
            return pool.submit(join, rank, addresses, of(rank), **{"job": "a", "patience": 60.0, **how})

        yield begin


def of(rank: int) -> RankInfos:
    return (RankInfo(rank=rank, host=f"host{rank}", device="cpu", gpu="", visible="none"),)


Start = Callable[..., Future[list[RankInfos]]]


class Progress:
    """The messages of worker 0 about its waiting, and a clock for it that a test can move on."""

    def __init__(self) -> None:
        self._messages: queue.Queue[str] = queue.Queue()
        self._ahead = 0.0

    def say(self, message: str) -> None:
        self._messages.put(message)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def wait_for(self, joined: int) -> str:
        """The message that so many of three workers have joined."""
        while not (message := self._messages.get(timeout=60)).endswith(f": {joined} of 3 have joined"):
            pass
        return message

    def run_out_of_patience(self) -> None:
        self._ahead = 1000.0


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Progress:
    progress = Progress()
    monkeypatch.setattr(rendezvous, "SILENT", 0.02)
    monkeypatch.setattr(rendezvous, "EVERY", 0.02)
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=progress.monotonic, sleep=time.sleep))
    return progress


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_every_worker_gets_the_ranks_of_all_in_any_order_of_joining(
    start: Start, addresses: list[str], order: tuple[int]
) -> None:
    started = []
    for rank in order:
        started.append(start(rank, addresses))
        time.sleep(0.2)
    assert [each.result() for each in started] == [[of(0), of(1), of(2)]] * 3


def test_all_that_joined_learn_who_is_missing(start: Start, addresses: list[str], progress: Progress) -> None:
    came = [start(rank, addresses, say=progress.say) for rank in (0, 2)]
    progress.wait_for(joined=2)
    progress.run_out_of_patience()
    for each in came:
        with pytest.raises(PlacementError) as raised:
            each.result()
        first, *rows = str(raised.value).splitlines()
        assert first == f"worker 1 at {addresses[1]} did not join within 60 s; 2 of 3 did"
        assert [row.split()[:2] for row in rows] == [["rank", "host"], ["0", "host0"], ["2", "host2"]]
        assert raised.value.of_all


def test_the_others_name_a_worker_0_that_never_starts(start: Start, addresses: list[str]) -> None:
    with pytest.raises(PlacementError, match=f"worker 0 at {addresses[0]} did not answer worker 1 on .* within 0.3 s"):
        start(1, addresses, patience=0.3).result()


def test_waiting_is_reported(start: Start, addresses: list[str], progress: Progress) -> None:
    started = [start(0, addresses, say=progress.say), start(1, addresses)]
    assert progress.wait_for(joined=2) == f"waiting for worker 2 at {addresses[2]}: 2 of 3 have joined"
    started.append(start(2, addresses))
    assert [each.result() for each in started] == [[of(0), of(1), of(2)]] * 3


def test_a_worker_that_joined_and_ended_counts_as_missing(
    start: Start, addresses: list[str], progress: Progress
) -> None:
    first = start(0, addresses, say=progress.say)
    with at(addresses[0]) as gone:
        gone.sendall(b'{"job": "a", "rank": 1, "size": 3, "ranks": []}\n')
        progress.wait_for(joined=2)
    progress.wait_for(joined=1)
    progress.run_out_of_patience()
    missing = f"worker 1 at {addresses[1]}, worker 2 at {addresses[2]} did not join within 60 s; 1 of 3 did"
    with pytest.raises(PlacementError, match=re.escape(missing)):
        first.result()


@pytest.mark.parametrize(
    ("job", "among", "why"),
    [
        ("b", 2, "worker 1 of b with 2 workers connected to the address of a with 2 workers"),
        ("a", 3, "worker 1 of a with 3 workers connected to the address of a with 2 workers"),
    ],
)
def test_a_worker_of_another_job_is_turned_away(
    start: Start, addresses: list[str], job: str, among: int, why: str
) -> None:
    first = start(0, addresses[:2])
    with pytest.raises(PlacementError, match=why) as raised:
        start(1, addresses[:among], job=job).result()
    assert not raised.value.of_all
    assert start(1, addresses[:2]).result() == first.result() == [of(0), of(1)]


def test_a_second_worker_of_the_same_number_is_turned_away(
    start: Start, addresses: list[str], progress: Progress
) -> None:
    first, second = start(0, addresses, say=progress.say), start(1, addresses)
    progress.wait_for(joined=2)
    with pytest.raises(PlacementError, match="there is a worker 1 of a with 3 workers already"):
        start(1, addresses).result()
    assert start(2, addresses).result() == first.result() == second.result()


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff\xfe\n", b'{"rank": "x"}\n', b"[]\n", b"1\n"]
)
def test_connections_of_other_programs_are_ignored(start: Start, addresses: list[str], content: bytes) -> None:
    first = start(0, addresses[:2])
    with at(addresses[0]) as stranger:
        stranger.sendall(content)
        assert start(1, addresses[:2]).result() == first.result() == [of(0), of(1)]


@pytest.mark.parametrize("content", [b"HTTP/1.1 400 Bad Request\r\n", b"1\n", b"{}\n", b'{"ranks": 1}\n', b""])
def test_another_program_at_the_address_of_worker_0_is_no_answer(
    addresses: list[str], progress: Progress, content: bytes
) -> None:
    def answer_twice(server: socket.socket) -> None:
        for last in (False, True):
            with server.accept()[0] as connection:
                connection.recv(65536)  # unread bytes would reset the connection
                if last:
                    progress.run_out_of_patience()
                connection.sendall(content)

    with socket.create_server(("127.0.0.1", int(addresses[0].split(":")[1]))) as server:
        threading.Thread(target=answer_twice, args=(server,), daemon=True).start()
        with pytest.raises(PlacementError, match="within 60 s: it ended, or another program listens there"):
            join(1, addresses[:2], of(1), job="a", patience=60)


def test_an_address_in_use_is_reported(addresses: list[str]) -> None:
    with socket.create_server(("127.0.0.1", int(addresses[0].split(":")[1]))), pytest.raises(PlacementError) as raised:
        join(0, addresses, of(0), job="a", patience=1.0)
    assert str(raised.value) == f"worker 0 can't listen at {addresses[0]}: Address already in use"


def at(address: str) -> socket.socket:
    """A connection to there, once somebody listens."""
    host, port = address.split(":")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            return socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise AssertionError(f"nobody listens at {address}")


@pytest.mark.parametrize(("seconds", "code"), [(1, -signal.SIGALRM), (30, 0)])
def test_a_framework_that_blocks_on_a_dead_worker_is_ended(seconds: int, code: int) -> None:
    """As TensorFlow does: in C, with Python's lock held and SIGTERM taken away."""
    waiting = f"""
import ctypes, signal
from recipes.trainer.rendezvous import connecting
signal.signal(signal.SIGTERM, lambda *_: None)
with connecting(0, 2, "TensorFlow", {seconds}):
    ctypes.PyDLL(None).sleep(2)
"""
    ended = subprocess.run(
        [sys.executable, "-c", waiting], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == code
    assert ended.stderr.startswith(
        f"2 workers joined; if TensorFlow does not connect them within {seconds} s, SIGALRM ends"
    )
