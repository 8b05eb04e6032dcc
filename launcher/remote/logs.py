"""What a run elsewhere printed, brought a piece at a time.

A connection that is lost is made again, and the reading goes on where it was.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from launcher.log_pieces import Piece, Place
from launcher.remote.host import Unreachable, connect
from launcher.remote.pointers import Pointer
from launcher.runs import Run
from launcher.states import State

PATIENCE = 300.0
"""Seconds for which a host that was followed is asked again."""
PAUSES = (1.0, 2.0, 5.0, 10.0)


def from_host(
    run: Run, pointer: Pointer, place: Place | None, *, attempt: int | None, lines: int | None, following: bool
) -> Piece:
    """The next piece of a run's logs from its host; see `log_pieces.piece`. Raises `Unreachable`."""
    began, tried = time.monotonic(), 0
    while True:
        try:
            return _ask(run, pointer, place, attempt=attempt, lines=lines, following=following)
        except Unreachable as error:
            if not following or place is None or time.monotonic() - began > PATIENCE:
                raise
            print(f"{error}; trying again", file=sys.stderr, flush=True)
            time.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
            tried += 1


def _ask(run: Run, pointer: Pointer, place: Place | None, **options: Any) -> Piece:
    asked = place._asdict() if place else None
    answers = connect(pointer.address).stream("log", root=pointer.root, id=run.id, place=asked, **options)
    head, texts = next(answers), bytearray()
    for each in answers:
        texts += each
    first = head["sizes"][0]
    return Piece(
        place=Place(**head["place"]),
        texts=(bytes(texts[:first]), bytes(texts[first:])),
        more=head["more"],
        ended=head["ended"],
        state=State(*head["state"]) if head["state"] else None,
    )
