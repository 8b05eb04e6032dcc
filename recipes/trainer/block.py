"""A block of a comparison: a user's script that was started afresh is ended after so many optimizer steps."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from recipes.arguments import Arguments
from recipes.metrics import warm_up

FILE = "block"
"""Of the run folder, written by the comparison's script: the number of the block, from 0, and of how many."""
GRACE = 20.0
"""Seconds that the script has to end once its block is over, and its process to end after that."""


class BlockOver(BaseException):
    """The script has taken the steps of its block. Not an `Exception`, which many scripts catch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Its place among the blocks of one arm, whose steps are numbered one after another."""

    number: int
    """From 0."""
    count: int
    """Of all blocks."""
    steps: int
    """Of each block."""

    @property
    def before(self) -> int:
        """Steps of the blocks before it."""
        return self.number * self.steps

    @property
    def edges(self) -> tuple[int, int]:
        """The steps, counted in this block, at whose end its timed steps begin and end."""
        return warm_up(self.steps), self.steps

    @property
    def total(self) -> int:
        """Steps of all blocks."""
        return self.count * self.steps


def of(chosen: Arguments) -> Block | None:
    """The block that this start of a script is; None of a run by itself."""
    steps = (chosen.plan.get("script") or {}).get("block")
    if not steps or chosen.run is None:
        return None
    number, count = map(int, (chosen.run / FILE).read_text(encoding="utf-8").split())
    return Block(number=number, count=count, steps=steps)


def end_within(seconds: float, end: Callable[[], int]) -> None:
    """End the process with the exit code that `end` gives, unless it has ended after so many seconds by itself.

    A script can go on for ever: it may catch every exception, or wait for a thread of its own.
    """

    def ends() -> None:
        code = end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, ends)
    timer.daemon = True
    timer.start()
