"""When the optimizer steps of a script are observed."""

from __future__ import annotations

import random

SPAN = 2
"""Optimizer steps of a script that are observed at a time, so that both of a GAN's networks are."""


def next_span(steps: int) -> int:
    """The first step of the next span, after so many steps: in the next decade, early for short scripts, too."""
    low = 10 ** len(str(steps))
    return random.Random(low).randrange(low, 2 * low)
