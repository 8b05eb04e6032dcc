"""Texts of other machines that are made to be slow to clean."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measured, by_turns
from launcher import admit

LONG, SHORT = 300_000, 30_000
ROUNDS = 7
_PIECES = ("\x9d", "\x1b]", "\x9b", "\ud800")


def clean(folder: Path) -> Measured:
    cases: dict[str, Callable[[], float]] = {
        "ten times the text": functools.partial(_seconds, LONG, 1),
        "ten times a text": functools.partial(_seconds, SHORT, 10),
    }
    claim = "A text of controls only is cleaned in time in proportion to its length"
    return Measured(claim=claim, limit=1.5, timings=by_turns(cases, ROUNDS))


def _seconds(length: int, times: int) -> float:
    texts = [piece * length for piece in _PIECES] + ["\x1b[" + "0" * length]
    began = time.perf_counter()
    for text in texts:
        for _ in range(times):
            admit.clean(text)
    return time.perf_counter() - began
