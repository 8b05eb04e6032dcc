"""One line that says what a command is busy with, where that takes long: it changes on a terminal and then goes away.
Outside a terminal it is a line now and then."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST = 2.0
"""Seconds that a person waits without a word."""
EVERY = 0.5
"""Seconds between two looks of the terminal's line."""
SELDOM = 60.0
"""Seconds between two lines outside a terminal."""
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def shown(text: Callable[[], str]) -> Iterator[None]:
    """Show on stderr what is being done and for how long, until the block ends. `text` is called by another thread."""
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(text, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def counted(items: Sequence[T], text: str) -> Iterator[Iterator[T]]:
    """The items to walk over in the block, while the text is shown; it has two `{}`, for how many are done and how
    many there are."""
    done = 0

    def walk() -> Iterator[T]:
        nonlocal done
        for item in items:
            yield item
            done += 1

    with shown(lambda: text.format(f"{done:,}", f"{len(items):,}")):
        yield walk()


def say(line: str) -> None:
    """Print a line on stderr while something is shown, which stands below it from its next look on."""
    print(f"{_CLEAR if sys.stderr.isatty() else ''}{line}", file=sys.stderr)


def _show(text: Callable[[], str], ended: threading.Event) -> None:
    began, is_terminal = time.monotonic(), sys.stderr.isatty()
    wrote = False
    while not ended.wait((EVERY if wrote else FIRST) if is_terminal else SELDOM):
        line = f"{text()}  {time.monotonic() - began:.0f}s"
        if is_terminal:
            line = f"{_CLEAR}{line[: _width() - 1]}"  # a longer one could not be taken back
        print(line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)
        wrote = True
    if wrote and is_terminal:
        print(_CLEAR, end="", file=sys.stderr, flush=True)


def _width() -> int:
    """Columns of the terminal that stderr is: stdout may be a pipe."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80
