"""Where a rank spends its time, by looking at its main thread once a second: a step costs nothing.

All ranks take steps at the pace of the slowest, so that times of steps do not tell which that is. The others wait for
it in backward or in a collective, and it is elsewhere: `launcher/runs/slow_ranks.py` compares them.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections import Counter, deque
from pathlib import Path
from types import FrameType

from amp_launcher.run_folder import write_json

SAMPLES = 300
"""Looks that are kept, about five minutes of them; nothing is said before there are so many."""
EVERY = 60
"""Looks between two records."""
PLACES = 8
"""The most places that a record has."""
_COLLECTIVES = (f"{os.sep}torch{os.sep}distributed{os.sep}", f"{os.sep}parallel{os.sep}distributed.py")


class Pace:
    """The samples of one rank."""

    def __init__(self, run: Path, attempt: str, rank: int) -> None:
        """`attempt` is the folder of the attempt in that of the run."""
        self._file = run / attempt / f"pace-rank{rank}.json"
        self._rank = rank
        self._kept: deque[str] = deque()
        self._looks = 0

    def sample(self, innermost: FrameType, own: FrameType) -> None:
        """Note where the main thread is: `own` is its innermost frame that is no library's."""
        waits = _waits(innermost, own)
        self._kept.append("" if waits else f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno}")
        while len(self._kept) > SAMPLES:
            self._kept.popleft()
        self._looks += 1
        if len(self._kept) == SAMPLES and self._looks % EVERY == 0:
            self._leave()

    def _leave(self) -> None:
        counts = Counter(self._kept)
        waits = counts.pop("", 0) / SAMPLES
        places = {place: count / SAMPLES for place, count in counts.most_common(PLACES)}
        record = {"rank": self._rank, "node": platform.node(), "waits": waits, "places": places}
        with contextlib.suppress(OSError):
            write_json(self._file, record)


def _waits(innermost: FrameType, own: FrameType) -> bool:
    """Whether it is in torch's backward, whose end is where gradients meet, or in a collective."""
    if any(mark in innermost.f_code.co_filename for mark in _COLLECTIVES):
        return True
    frame: FrameType | None = innermost
    while frame is not None and frame is not own:
        if frame.f_code.co_name in ("_engine_run_backward", "synchronize"):
            return True
        frame = frame.f_back
    return False
