"""Where the processes of a job meet before their framework connects them: within a bounded time, and said in words.

TensorFlow and torchrun wait by times of their own for a process that never starts, and don't say for which one. So all
come to the address of the first one while it isn't theirs yet, say where they compute, and hear where all do, or who is
missing: one line of JSON each way.
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

from recipes.trainer.world import Place, PlacementError, host_and_port, table

PATIENCE = 600.0
"""Seconds to wait for the others: nodes read their images at different speeds."""
CONNECTING = 180
"""Seconds in which those that have met are connected: nothing but the framework's own work lies between the two."""
SILENT, EVERY = 15.0, 60.0
"""Seconds of waiting before the first word about it, and between later ones."""
AGAIN = 0.1
"""Seconds between two tries to reach the first process."""

Places = tuple[Place, ...]


def meet(
    rank: int,
    addresses: Sequence[str],
    mine: Places,
    *,
    job: str,
    patience: float,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> list[Places]:
    """What every process has as `mine`, by rank, on every rank; `addresses` are theirs, HOST:PORT each.

    `job` is the same text for all of a job: one of another is turned away. Raises `PlacementError`, alike on all that
    came, where somebody has not within `patience` seconds.
    """
    if rank:
        return _go(rank, addresses, mine, job, patience)
    return _receive(addresses, mine, job, patience, say)


def job(environ: Mapping[str, str]) -> str:
    """What the launcher calls this attempt of this run; empty where it didn't start it."""
    return f"{environ.get('LAUNCHER_RUN_ID', '')} {environ.get('LAUNCHER_ATTEMPT', '')}".strip()


@contextlib.contextmanager
def connecting(
    rank: int,
    size: int,
    by: str,
    seconds: int = CONNECTING,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Iterator[None]:
    """Around a framework's own connecting of processes that have met: ends this one where that takes too long.

    It does where one of them has died since. TensorFlow waits for that one, takes no SIGTERM, and lets no other code
    of Python run meanwhile: so an alarm ends the process by the system's own means, and what it means is said before.
    """
    if not rank:
        say(
            f"{size} workers are here; should {by} not connect them within {seconds} s, SIGALRM ends them: one has died"
        )
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclasses.dataclass(kw_only=True, slots=True)
class _Guest:
    connection: socket.socket
    heard: bytes = b""
    rank: int | None = None
    """Once it has said so."""


def _receive(
    addresses: Sequence[str], mine: Places, job: str, patience: float, say: Callable[[str], None]
) -> list[Places]:
    """The first process's part: wait for the others, and tell them."""
    began = time.monotonic()
    word = began + SILENT
    come: dict[int, Places] = {0: mine}
    with contextlib.ExitStack() as open_until_told, selectors.DefaultSelector() as selector:
        server = open_until_told.enter_context(_listening(addresses[0]))
        selector.register(server, selectors.EVENT_READ)
        while len(come) < len(addresses):
            now = time.monotonic()
            if now >= began + patience:
                break
            if now >= word:
                say(f"waiting for {_missing(come, addresses)}: {len(come)} of {len(addresses)} have come")
                word = now + EVERY
            for key, _ in selector.select(min(word, began + patience) - now):
                if key.fileobj is server:
                    connection, _ = server.accept()
                    open_until_told.enter_context(connection).setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, _Guest(connection=connection))
                elif not _hear(key.data, come, len(addresses), job):
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
        problem = _problem(come, addresses, patience) if len(come) < len(addresses) else ""
        answer: dict[str, Any] = {"places": _plain([come[each] for each in sorted(come)])}
        if problem:
            answer = {"problem": problem, "of_all": True}
        for key in list(selector.get_map().values()):
            if key.data and key.data.rank is not None:
                _send(key.data.connection, answer)
    if problem:
        raise PlacementError(problem)
    return [come[each] for each in range(len(addresses))]


def _hear(guest: _Guest, come: dict[int, Places], size: int, job: str) -> bool:
    """Read what a guest says, and let it in once it has said all. False where it has gone, or can't be let in."""
    try:
        heard = guest.connection.recv(65536)
    except OSError:
        heard = b""
    if not heard:
        if guest.rank is not None:
            del come[guest.rank]
        return False
    guest.heard += heard
    if not guest.heard.endswith(b"\n"):
        return len(guest.heard) < 2**20
    try:
        said = json.loads(guest.heard)
        rank, theirs, places = int(said["rank"]), (str(said["job"]), int(said["size"])), _places(said["places"])
    except (ValueError, KeyError, TypeError):
        return False  # a stranger
    if theirs != (job, size):
        _turn_away(guest, f"worker {rank} of {_told(*theirs)} came to the address of {_told(job, size)}")
        return False
    if rank in come or not 0 < rank < size:
        _turn_away(guest, f"there is a worker {rank} of {_told(job, size)} already")
        return False
    guest.rank, come[rank] = rank, places
    return True


def _turn_away(guest: _Guest, why: str) -> None:
    _send(guest.connection, {"problem": why, "of_all": False})


def _told(job: str, size: int) -> str:
    return f"{job or 'a job'} with {size} workers"


def _go(rank: int, addresses: Sequence[str], mine: Places, job: str, patience: float) -> list[Places]:
    """Any other process's part: find the first one, and hear from it."""
    host, port = host_and_port(addresses[0])
    hello = {"job": job, "rank": rank, "size": len(addresses), "places": _plain([mine])[0]}
    until = time.monotonic() + patience
    why = ""
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as connection:
                _send(connection, hello)
                # It may have begun to wait later than this one did.
                connection.settimeout(left + patience)
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline())
                break
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError:
            why = "it ended, or something else listens there"
        time.sleep(AGAIN)
    else:
        missing = f"worker 0 at {addresses[0]} did not answer worker {rank} on {socket.gethostname()}"
        raise PlacementError(f"{missing} within {patience:g} s: {why}", of_all=False)
    if "problem" in answer:
        raise PlacementError(answer["problem"], of_all=answer["of_all"])
    return [_places(each) for each in answer["places"]]


def _listening(address: str) -> socket.socket:
    """On every interface, as the framework will: what a host is called elsewhere may not be one of its own names."""
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
    """Tell it, if it is still there."""
    with contextlib.suppress(OSError):
        connection.settimeout(10)
        connection.sendall(json.dumps(content).encode() + b"\n")


def _problem(come: Mapping[int, Places], addresses: Sequence[str], patience: float) -> str:
    there = [place for rank in sorted(come) for place in come[rank]]
    what = f"{_missing(come, addresses)} did not come within {patience:g} s; {len(come)} of {len(addresses)} did"
    return f"{what}\n{table(there)}"


def _missing(come: Mapping[int, Places], addresses: Sequence[str]) -> str:
    return ", ".join(f"worker {each} at {address}" for each, address in enumerate(addresses) if each not in come)


def _plain(everyones: Sequence[Places]) -> list[list[dict[str, Any]]]:
    return [[dataclasses.asdict(place) for place in places] for places in everyones]


def _places(plain: Sequence[Mapping[str, Any]]) -> Places:
    return tuple(Place(**each) for each in plain)
