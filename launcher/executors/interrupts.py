"""Ctrl-C while runs are handed over: it is answered when their names are known, so that none goes on unnamed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None

_presses: list[int] = []
_before: list[_Handler] = []
"""How Ctrl-C was answered outside of `held`, while that lasts."""


class HandedOver(KeyboardInterrupt):
    """Ctrl-C while a host was asked to start these runs: it may have started them or not."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.folders = folders


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
    _before.append(before)
    try:
        yield
    finally:
        _before.pop()
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """A part of `held` in which Ctrl-C raises `KeyboardInterrupt` at once, as does one that was noted before it."""
    if not _before or threading.current_thread() is not threading.main_thread():
        yield
        return
    noting = signal.signal(signal.SIGINT, _before[-1])
    try:
        check()
        yield
    finally:
        signal.signal(signal.SIGINT, noting)


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
