"""What a run printed, a piece at a time, so that following it takes little memory, here or over a wire.

A piece tells where the next one begins, by byte offset. Whoever keeps that place misses nothing, has nothing twice and
no line in parts, however often the reading was broken off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from launcher import admit
from launcher.runs import follow, store
from launcher.runs.states import State
from launcher.runs.store import Run

NAMES = ("stdout.log", "stderr.log")
PIECE = 2**20
"""Bytes of each of the two at once."""


class LogOffset(NamedTuple):
    """How far a reader is."""

    attempt: Annotated[int, admit.whole]
    stdout: Annotated[int, admit.whole] = 0
    stderr: Annotated[int, admit.whole] = 0


class Piece(NamedTuple):
    """What comes next of a run's logs."""

    place: LogOffset
    texts: tuple[bytes, bytes]
    more: bool
    """The next piece is there already."""
    ended: bool
    """Nothing will come after it."""
    state: State | None = None
    """Of a run that is followed."""


def piece(
    run: Run, place: LogOffset | None, state: State | None, *, attempt: int | None, lines: int | None = None
) -> Piece:
    """The next piece from a place on; without one from the beginning, or the last so many lines.

    `state` is that of a run that is followed, read before this: what is finished prints no more. `attempt` keeps to
    that one; else the attempts after it follow. Whole lines, as long as more may come.
    """
    numbers = store.attempts(run.folder)
    if place is None:
        number = attempt or max(numbers, default=1)
        begins = (0 if lines is None else follow.last_lines(_path(run, number, name), lines) for name in NAMES)
        place = LogOffset(number, *begins)
    newer = [number for number in numbers if number > place.attempt]
    over = state is None or state.finished or bool(newer)
    texts = tuple(
        follow.since(_path(run, place.attempt, name), offset, PIECE, whole_lines=not over)
        for name, offset in zip(NAMES, place[1:], strict=True)
    )
    after = LogOffset(place.attempt, place.stdout + len(texts[0]), place.stderr + len(texts[1]))
    more = any(len(text) > PIECE // 2 for text in texts)
    if not more and state is not None and newer and attempt is None:
        after, more = LogOffset(newer[0]), True
    return Piece(after, (texts[0], texts[1]), more=more, ended=over and not more, state=state)


def _path(run: Run, attempt: int, name: str) -> Path:
    return run.folder / "attempts" / str(attempt) / name
