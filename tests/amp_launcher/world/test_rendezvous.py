"""Rendezvous of processes: each is a thread here, with its own sockets."""

from __future__ import annotations

import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from amp_launcher.world import rendezvous
from amp_launcher.world.rendezvous import RankInfos, join
from amp_launcher.world.world import PlacementError, RankInfo

Joining = Future[list[RankInfos]]


def of(rank: int) -> RankInfos:
    return (RankInfo(rank=rank, host=f"host{rank}", device="cpu", gpu="", visible="none"),)


class Workers:
    """Three workers, of which a test has some join, with the messages of worker 0 and a clock that it moves on."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._messages: queue.Queue[str] = queue.Queue()
        self._ahead = 0.0
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
        self.port = sockets[0].getsockname()[1]
        for server in sockets:
            server.close()

    def join(self, rank: int, size: int = 3, job: str = "a", patience: float = 60.0) -> Joining:
        """Have a worker join in a thread."""
        addresses, say = self.addresses[:size], self._messages.put
        return self._pool.submit(join, rank, addresses, of(rank), job=job, patience=patience, say=say)

    def connection(self) -> socket.socket:
        """One to worker 0, once it listens."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                return socket.create_connection(("127.0.0.1", self.port))
            except ConnectionRefusedError:
                time.sleep(0.02)
        raise AssertionError("worker 0 does not listen")

    def wait_for(self, joined: int) -> str:
        """The message of worker 0 that so many of the three have joined."""
        while f"{joined} of 3 have joined" not in (message := self._messages.get(timeout=60)):
            pass
        return message

    @property
    def unread(self) -> int:
        """Messages since the one that was waited for."""
        return self._messages.qsize()

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def run_out_of_patience(self) -> None:
        self._ahead = 1000.0


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    with ThreadPoolExecutor(4) as pool:
        workers = Workers(pool)
        monkeypatch.setattr(rendezvous, "SILENT", 0.02)
        monkeypatch.setattr(rendezvous, "EVERY", 0.02)
        monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=workers.monotonic, sleep=time.sleep))
        yield workers


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_every_worker_gets_the_ranks_of_all_in_any_order_of_joining(workers: Workers, order: tuple[int]) -> None:
    joining = []
    for rank in order:
        joining.append(workers.join(rank))
        time.sleep(0.2)
    assert [worker.result() for worker in joining] == [[of(0), of(1), of(2)]] * 3


def test_all_that_joined_learn_who_is_missing(workers: Workers) -> None:
    joining = [workers.join(rank) for rank in (0, 2)]
    message = workers.wait_for(joined=2)
    assert message == f"waiting for worker 1 at {workers.addresses[1]}: 2 of 3 have joined"
    workers.run_out_of_patience()
    for worker in joining:
        with pytest.raises(PlacementError) as raised:
            worker.result()
        first, *rows = str(raised.value).splitlines()
        assert first == f"worker 1 at {workers.addresses[1]} did not join within 60 s; 2 of 3 did"
        assert [row.split()[:2] for row in rows] == [["rank", "host"], ["0", "host0"], ["2", "host2"]]
        assert raised.value.of_all


def test_who_is_missing_is_said_at_intervals(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "EVERY", 60.0)
    joining = [workers.join(0)]
    workers.wait_for(joined=1)
    joining += [workers.join(rank) for rank in (1, 2)]
    assert [worker.result() for worker in joining] == [[of(0), of(1), of(2)]] * 3
    assert workers.unread == 0


def test_the_others_name_a_worker_0_that_never_starts(workers: Workers) -> None:
    message = f"worker 0 at {workers.addresses[0]} did not answer worker 1 on .* within 0.3 s"
    with pytest.raises(PlacementError, match=message):
        workers.join(1, patience=0.3).result()


def test_a_worker_that_joined_and_ended_counts_as_missing(workers: Workers) -> None:
    first = workers.join(0)
    with workers.connection() as gone:
        gone.sendall(b'{"job": "a", "rank": 1, "size": 3, "ranks": []}\n')
        workers.wait_for(joined=2)
    workers.wait_for(joined=1)
    workers.run_out_of_patience()
    _, one, two = workers.addresses
    missing = f"worker 1 at {one}, worker 2 at {two} did not join within 60 s; 1 of 3 did"
    with pytest.raises(PlacementError, match=re.escape(missing)):
        first.result()


@pytest.mark.parametrize(
    ("job", "size", "why"),
    [
        ("b", 2, "worker 1 of b with 2 workers connected to the address of a with 2 workers"),
        ("a", 3, "worker 1 of a with 3 workers connected to the address of a with 2 workers"),
    ],
)
def test_a_worker_of_another_job_is_turned_away(workers: Workers, job: str, size: int, why: str) -> None:
    first = workers.join(0, 2)
    with pytest.raises(PlacementError, match=why) as raised:
        workers.join(1, size, job).result()
    assert not raised.value.of_all
    assert workers.join(1, 2).result() == first.result() == [of(0), of(1)]


def test_a_second_worker_of_the_same_number_is_turned_away(workers: Workers) -> None:
    first, second = workers.join(0), workers.join(1)
    workers.wait_for(joined=2)
    with pytest.raises(PlacementError, match="there is a worker 1 of a with 3 workers already"):
        workers.join(1).result()
    assert workers.join(2).result() == first.result() == second.result()


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff\xfe\n", b'{"rank": "x"}\n', b"[]\n", b"1\n"]
)
def test_connections_of_other_programs_are_ignored(workers: Workers, content: bytes) -> None:
    first = workers.join(0, 2)
    with workers.connection() as stranger:
        stranger.sendall(content)
        assert workers.join(1, 2).result() == first.result() == [of(0), of(1)]


@pytest.mark.parametrize("content", [b"HTTP/1.1 400 Bad Request\r\n", b"1\n", b"{}\n", b'{"ranks": 1}\n', b""])
def test_another_program_at_the_address_of_worker_0_is_no_answer(workers: Workers, content: bytes) -> None:
    def answer_twice(server: socket.socket) -> None:
        for last in (False, True):
            with server.accept()[0] as connection:
                connection.recv(65536)  # unread bytes would reset the connection
                if last:
                    workers.run_out_of_patience()
                connection.sendall(content)

    with socket.create_server(("127.0.0.1", workers.port)) as server:
        threading.Thread(target=answer_twice, args=(server,), daemon=True).start()
        with pytest.raises(PlacementError, match="within 60 s: it ended, or another program listens there"):
            workers.join(1, 2).result()


def test_an_address_in_use_is_reported(workers: Workers) -> None:
    with socket.create_server(("127.0.0.1", workers.port)), pytest.raises(PlacementError) as raised:
        workers.join(0).result()
    assert str(raised.value) == f"worker 0 can't listen at {workers.addresses[0]}: Address already in use"


BLOCKED = """
import ctypes, signal
from amp_launcher.world.rendezvous import connecting
signal.signal(signal.SIGTERM, lambda *_: None)
with connecting(0, 2, "TensorFlow", {}):
    ctypes.PyDLL(None).sleep(2)
"""


@pytest.mark.parametrize(("seconds", "code"), [(1, -signal.SIGALRM), (30, 0)])
def test_a_framework_that_blocks_on_a_dead_worker_is_ended(seconds: int, code: int) -> None:
    """As TensorFlow does: in C, with Python's lock held and SIGTERM taken away."""
    command, root = [sys.executable, "-c", BLOCKED.format(seconds)], Path(__file__).parents[3]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert ended.returncode == code
    message = f"2 workers joined; if TensorFlow does not connect them within {seconds} s, SIGALRM ends"
    assert ended.stderr.startswith(message)
