"""Ctrl-C handled between steps: of a submission once the names of the runs are known, so that none runs unnamed."""

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
"""The handlers that `held` replaced."""


class HandedOver(KeyboardInterrupt):
    """Ctrl-C while a host was starting these runs: it may have started them or not."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.folders = folders


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Note Ctrl-C instead of raising `KeyboardInterrupt`. Loops in the block poll `noted` or `presses`. A block within
    another one sees what was pressed before it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may take signals
        return

    def note(number: int, frame: FrameType | None) -> None:
        _presses.append(number)

    before = signal.signal(signal.SIGINT, note)
    _before.append(before)
    try:
        yield
    finally:
        _before.pop()
        signal.signal(signal.SIGINT, before)
        if not _before:
            _presses.clear()  # none is left for a later submission of this process


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """A part of `held` in which Ctrl-C raises `KeyboardInterrupt` at once, as does one noted before it."""
    if not _before or threading.current_thread() is not threading.main_thread():
        yield
        return
    noting = signal.signal(signal.SIGINT, _before[0])
    try:
        raise_noted()
        yield
    finally:
        signal.signal(signal.SIGINT, noting)


def noted() -> bool:
    """Whether a Ctrl-C is waiting to be handled."""
    return bool(_presses)


def presses() -> int:
    """How often Ctrl-C was pressed."""
    return len(_presses)


def raise_noted() -> None:
    """Raise `KeyboardInterrupt` for a noted Ctrl-C, where nothing was started yet."""
    if _presses:
        raise KeyboardInterrupt
