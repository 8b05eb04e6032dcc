"""Rendezvous of a job's processes before the framework connects them: bounded in time, naming who is missing.

TensorFlow and torchrun wait by time-outs of their own for a process that never starts, and do not name it. So every
process first connects to worker 0's address while the framework does not use it yet, sends where it computes, and gets
where all do, or who is missing: one line of JSON each way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_launcher.world.world import PlacementError, RankInfo, host_and_port, table

PATIENCE = 600.0
"""Seconds to wait for the others: nodes read their images at different speeds."""
CONNECTING = 180
"""Seconds that the framework has to connect processes that have joined."""
SILENT, EVERY = 15.0, 60.0
"""Seconds of waiting before the first message about it, and between later ones."""
AGAIN = 0.1
"""Seconds between two attempts to reach worker 0."""

RankInfos = tuple[RankInfo, ...]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def join(
    rank: int,
    addresses: Sequence[str],
    mine: RankInfos,
    *,
    job: str,
    patience: float,
    say: Callable[[str], None] = _print,
) -> list[RankInfos]:
    """Every process's `mine`, by rank, on every rank. `addresses` are the processes' HOST:PORT, by rank.

    `job` is the same text for all processes of a job: those of another job are turned away. Raises `PlacementError`,
    the same on all that joined, where some did not join within `patience` seconds.
    """
    if rank:
        return _connect(rank, addresses, mine, job, patience)
    return _serve(addresses, mine, job, patience, say)


def job(environ: Mapping[str, str]) -> str:
    """The launcher's name of this attempt of this run; empty where the launcher did not start it."""
    return f"{environ.get('LAUNCHER_RUN_ID', '')} {environ.get('LAUNCHER_ATTEMPT', '')}".strip()


@contextlib.contextmanager
def connecting(rank: int, size: int, by: str, seconds: int = CONNECTING) -> Iterator[None]:
    """Around a framework's own connecting of processes that have joined: ends this one where that takes too long.

    It does where one of them has died since. TensorFlow then waits, ignores SIGTERM, and runs no other Python code
    meanwhile: so SIGALRM's default action ends the process, and the meaning of that is printed beforehand.
    """
    if not rank:
        _print(
            f"{size} workers joined; if {by} does not connect them within {seconds} s, SIGALRM ends them: one has died"
        )
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclasses.dataclass(kw_only=True, slots=True)
class _Peer:
    connection: socket.socket
    received: bytes = b""
    rank: int | None = None
    """None until it has sent it."""


def _serve(
    addresses: Sequence[str], mine: RankInfos, job: str, patience: float, say: Callable[[str], None]
) -> list[RankInfos]:
    """Worker 0's part: wait for the others, then send all of them the answer."""
    began = time.monotonic()
    next_message = began + SILENT
    joined: dict[int, RankInfos] = {0: mine}
    with contextlib.ExitStack() as connections, selectors.DefaultSelector() as selector:
        server = connections.enter_context(_listen(addresses[0]))
        selector.register(server, selectors.EVENT_READ)
        while len(joined) < len(addresses):
            now = time.monotonic()
            if now >= began + patience:
                break
            if now >= next_message:
                say(f"waiting for {_missing(joined, addresses)}: {len(joined)} of {len(addresses)} have joined")
                next_message = now + EVERY
            for key, _ in selector.select(min(next_message, began + patience) - now):
                if key.fileobj is server:
                    connection, _ = server.accept()
                    connections.enter_context(connection).setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, _Peer(connection=connection))
                elif not _receive(key.data, joined, len(addresses), job):
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
        problem = _problem(joined, addresses, patience) if len(joined) < len(addresses) else ""
        answer: dict[str, Any] = {"ranks": _plain([joined[rank] for rank in sorted(joined)])}
        if problem:
            answer = {"problem": problem, "of_all": True}
        for key in list(selector.get_map().values()):
            if key.data and key.data.rank is not None:
                _send(key.data.connection, answer)
    if problem:
        raise PlacementError(problem)
    return [joined[rank] for rank in range(len(addresses))]


def _receive(peer: _Peer, joined: dict[int, RankInfos], size: int, job: str) -> bool:
    """Read from a peer, and admit it once its message is complete. False where it has gone, or is not admitted."""
    try:
        data = peer.connection.recv(65536)
    except OSError:
        data = b""
    if not data:
        if peer.rank is not None:
            del joined[peer.rank]
        return False
    peer.received += data
    if not peer.received.endswith(b"\n"):
        return len(peer.received) < 2**20
    try:
        message = json.loads(peer.received)
        rank, theirs = int(message["rank"]), (str(message["job"]), int(message["size"]))
        infos = _from_plain(message["ranks"])
    except (ValueError, KeyError, TypeError):
        return False  # not one of ours
    if theirs != (job, size):
        _reject(peer, f"worker {rank} of {_name(*theirs)} connected to the address of {_name(job, size)}")
        return False
    if rank in joined or not 0 < rank < size:
        _reject(peer, f"there is a worker {rank} of {_name(job, size)} already")
        return False
    peer.rank, joined[rank] = rank, infos
    return True


def _reject(peer: _Peer, why: str) -> None:
    _send(peer.connection, {"problem": why, "of_all": False})


def _name(job: str, size: int) -> str:
    return f"{job or 'a job'} with {size} workers"


def _connect(rank: int, addresses: Sequence[str], mine: RankInfos, job: str, patience: float) -> list[RankInfos]:
    """Any other process's part: connect to worker 0, and get its answer."""
    host, port = host_and_port(addresses[0])
    message = {"job": job, "rank": rank, "size": len(addresses), "ranks": _plain([mine])[0]}
    until = time.monotonic() + patience
    why = ""
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as connection:
                _send(connection, message)
                # Worker 0 may have begun to wait later than this one.
                connection.settimeout(left + patience)
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline())
                if "problem" in answer:
                    raise PlacementError(answer["problem"], of_all=answer["of_all"])
                return [_from_plain(infos) for infos in answer["ranks"]]
        except OSError as error:
            why = error.strerror or str(error)
        except (ValueError, KeyError, TypeError):
            why = "it ended, or another program listens there"
        time.sleep(AGAIN)
    missing = f"worker 0 at {addresses[0]} did not answer worker {rank} on {socket.gethostname()}"
    raise PlacementError(f"{missing} within {patience:g} s: {why}", of_all=False)


def _listen(address: str) -> socket.socket:
    """On every interface, as the framework will: a host may not know the name that others use for it."""
    port = host_and_port(address)[1]
    both = socket.has_dualstack_ipv6()
    try:
        if both:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise PlacementError(f"worker 0 can't listen at {address}: {why}") from None


def _send(connection: socket.socket, content: Mapping[str, Any]) -> None:
    """Ignores a peer that has gone."""
    with contextlib.suppress(OSError):
        connection.settimeout(10)
        connection.sendall(json.dumps(content).encode() + b"\n")


def _problem(joined: Mapping[int, RankInfos], addresses: Sequence[str], patience: float) -> str:
    present = [info for rank in sorted(joined) for info in joined[rank]]
    missing = f"{_missing(joined, addresses)} did not join within {patience:g} s"
    return f"{missing}; {len(joined)} of {len(addresses)} did\n{table(present)}"


def _missing(joined: Mapping[int, RankInfos], addresses: Sequence[str]) -> str:
    return ", ".join(f"worker {rank} at {address}" for rank, address in enumerate(addresses) if rank not in joined)


def _plain(by_rank: Sequence[RankInfos]) -> list[list[dict[str, Any]]]:
    return [[dataclasses.asdict(info) for info in infos] for infos in by_rank]


def _from_plain(plain: Sequence[Mapping[str, Any]]) -> RankInfos:
    return tuple(RankInfo(**info) for info in plain)
