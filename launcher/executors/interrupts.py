"""Ctrl-C while runs are handed over: it is answered when their names are known, so that none goes on unnamed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_presses: list[int] = []


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Note Ctrl-C instead of raising `KeyboardInterrupt`. Whoever waits in the block asks `noted` meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may take signals
        return
    _presses.clear()

    def note(number: int, frame: FrameType | None) -> None:
        _presses.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def noted() -> bool:
    """Whether Ctrl-C was pressed and not answered yet."""
    return bool(_presses)


def check() -> None:
    """Answer a Ctrl-C, where nothing was started yet. Raises `KeyboardInterrupt`."""
    if _presses:
        raise KeyboardInterrupt


def take() -> list[int]:
    """The presses so far, which the caller answers."""
    taken = list(_presses)
    _presses.clear()
    return taken
