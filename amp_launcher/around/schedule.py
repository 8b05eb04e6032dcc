"""When the optimizer steps of a script are observed: at its start, early, and then at random to its end.

The random steps are those of the run's id, not of the script's generators, and the same on every rank as long as
observing costs its ranks about as much. From the third span on they take at most 1 % of the time.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import time
from collections.abc import Callable

SPAN = 2
"""Optimizer steps of a script that are observed at a time, so that both of a GAN's networks are."""
SHARE = 0.01
"""The most of the time that the third span and those after it take together."""
FREE = 2
"""Spans that a change asks for beyond that."""
LOOK_EVERY = 32
"""Steps of which one, at random, is looked at for a change."""
_SPARSER = 6
"""At most 2 ** (this - 1) random spans while the number of steps doubles: all of them are judged and kept."""
_LEAST, _MOST = 4, 40
"""The least and the largest binary logarithm of the steps between two spans."""


class Schedule:
    """The spans of one rank."""

    def __init__(self, run: str | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.due = 1
        """The first step of the current or next span."""
        self.spans = 0
        """Those that have ended."""
        self._run = os.environ.get("LAUNCHER_RUN_ID", "") if run is None else run
        self._seed = int.from_bytes(hashlib.sha256(self._run.encode()).digest()[:6], "big") if self._run else 0
        self._clock = clock
        self._began = self._ended = clock()
        self._step: float = math.inf
        """Steps when the newest span ended."""
        self._plain = 0.0
        """Seconds of a step that is not observed; 0 as long as none was timed."""
        self._spent = 0.0
        self._free = FREE
        self._block, self._look = -1, 0
        """The block of steps that was asked for last, and the step of it that is looked at."""

    def begin(self, steps: int) -> None:
        """A span begins after so many steps."""
        self._began = self._clock()
        if steps > self._step:
            self._plain = (self._began - self._ended) / (steps - self._step)

    def end(self, steps: int) -> None:
        """It has ended after so many."""
        self._ended, self._step = self._clock(), steps
        self.spans += 1
        cost = max(0.0, self._ended - self._began - SPAN * self._plain)
        if self.spans > 2:
            self._spent += cost
        if self._plain:
            self.due = self._next(steps, cost)
        else:
            low = 10 ** len(str(steps))
            self.due = random.Random(self._seed + low).randrange(low, 2 * low)

    def ask(self, steps: int) -> None:
        """Ask for a span at the next step, because something has changed."""
        if self.due <= steps + 1:
            return
        if self._spent > SHARE * steps * self._plain:
            if not self._free:
                return
            self._free -= 1
        self.due = steps + 1

    def looks(self, steps: int) -> bool:
        """Whether the step after so many is looked at for a change."""
        block = (steps + 1) // LOOK_EVERY
        if block != self._block:
            self._block, self._look = block, self._slot(LOOK_EVERY.bit_length() - 1, block)
        return self.spans > 0 and self._look == steps + 1

    def _next(self, steps: int, cost: float) -> int:
        """The first random step that the time taken so far pays for."""
        needed = cost / (SHARE * self._plain)
        level = min(max(_LEAST, int(needed).bit_length(), steps.bit_length() - _SPARSER), _MOST)
        block = steps >> level
        while True:
            block += 1
            step = self._slot(level, block)
            if SHARE * self._plain * step >= self._spent + cost:
                return step

    def _slot(self, level: int, block: int) -> int:
        """The random step of this block of 2 ** level steps. It is that of one of its halves: ranks that don't choose
        the same distance share the steps of the longer one."""
        for depth in range(level, 0, -1):
            digest = hashlib.blake2b(f"{self._run} {depth} {block}".encode(), digest_size=1).digest()
            block = 2 * block + (digest[0] & 1)
        return block
