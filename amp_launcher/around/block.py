"""A block of a comparison: a user's script, started afresh and ended after a number of optimizer steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from amp_launcher import leave
from amp_launcher.arguments import Arguments
from amp_launcher.metrics import warm_up

FILE = "block"
"""A file of the arm's run folder, written by compare.sh: the number of the block, from 0, and the number of blocks."""
GRACE = 20.0
"""Seconds after the end of a block in which the script has to end, and then as many for its process."""


class BlockOver(BaseException):
    """The script has taken the steps of its block. Not an `Exception`, which many scripts catch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The position of a block among the blocks of one arm, whose steps are numbered consecutively."""

    number: int
    """From 0."""
    count: int
    """Number of blocks."""
    steps: int
    """Optimizer steps of one block."""

    @property
    def before(self) -> int:
        """Steps of the earlier blocks."""
        return self.number * self.steps

    @property
    def edges(self) -> tuple[int, int]:
        """The steps of this block, counted from 1, after which timing begins and ends."""
        return warm_up(self.steps), self.steps

    @property
    def total(self) -> int:
        """Steps of all blocks."""
        return self.count * self.steps


def of(chosen: Arguments) -> Block | None:
    """The block that this process runs; None outside a comparison."""
    steps = (chosen.plan.get("script") or {}).get("block")
    if not steps or chosen.run is None:
        return None
    number, count = map(int, (chosen.run / FILE).read_text(encoding="utf-8").split())
    return Block(number=number, count=count, steps=steps)


def end_within(seconds: float, end: Callable[[], int]) -> None:
    """End the process after so many seconds with the exit code that `end` returns, unless it has ended before.

    A script may never end by itself: it may catch every exception, or wait for one of its threads.
    """

    def end_process() -> None:
        code = end()
        sys.stdout.flush()
        sys.stderr.flush()
        leave.end_now(code)

    timer = threading.Timer(seconds, end_process)
    timer.daemon = True
    timer.start()
