"""Requests to stop, a STOP file or TERM: all ranks poll for them at the same steps, and write metrics at these steps.

Slurm sends TERM before it kills: to the steps of a job that it preempts at the beginning of the grace time, to a whole
job at its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
SECONDS = 1.0
"""Between two polls: the longest that a STOP file goes unseen, while steps are shorter than this."""
STRIDE_GROWTH = 8
"""The first steps are the slowest; the number of steps between polls grows by at most this factor at once."""
_received = threading.Event()


def catch_term() -> None:
    """Have TERM ask this process to stop instead of ending it. A handler that the process has stays in place, and only
    the main thread can install one."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _receive)


@contextlib.contextmanager
def term_left_to_ranks(stop_themselves: Callable[[], bool]) -> Iterator[None]:
    """While this process waits in here for ranks that it started by multiprocessing, TERM is passed on to them where
    they stop by themselves, and else ends it. In the main thread, and where TERM has no handler."""
    import multiprocessing  # not in every script

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def receive(number: int, frame: Any) -> None:
        if stop_themselves():
            for rank in multiprocessing.active_children():
                rank.terminate()  # which is a TERM; Slurm sends them one too
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    _handlers.append(receive)
    signal.signal(signal.SIGTERM, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _handlers.remove(receive)


def catches(number: int) -> bool:
    """Whether the handler of this signal is one of this module's."""
    return signal.getsignal(number) in _handlers


def term_received() -> bool:
    """Whether TERM came since `catch_term`."""
    return _received.is_set()


def _receive(number: int, frame: Any) -> None:
    _received.set()


_handlers: list[Any] = [_receive]


class Ranks(Protocol):
    """The processes that have to agree."""

    rank: int

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""


class StopPoller:
    """Rank 0 reads the clock and the file system and looks for TERM, and broadcasts the step of the next poll.

    Ranks that polled by their own clocks would stop at different steps and deadlock. Between polls a rank compares two
    integers and communicates with nobody.
    """

    def __init__(self, world: Ranks, stop: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._stop = stop
        self._clock = clock
        self._last: tuple[int, float] | None = None
        self._next = 0

    def due(self, step: int) -> bool:
        """Whether the ranks poll before step number `step`."""
        return step >= self._next

    def poll(self, step: int) -> bool:
        """Whether to save and stop here. Collective: call it at every due step, on every rank."""
        stop = self._world.rank == 0 and (term_received() or (self._stop is not None and self._stop.exists()))
        stop, self._next = self._world.broadcast((stop, step + self._stride(step)))
        return stop

    def _stride(self, step: int) -> int:
        now = self._clock()
        last, self._last = self._last, (step, now)
        if last is None or step == last[0]:
            return 1
        steps, seconds = step - last[0], max(now - last[1], 1e-9)
        return max(1, min(int(SECONDS * steps / seconds), STRIDE_GROWTH * steps))
