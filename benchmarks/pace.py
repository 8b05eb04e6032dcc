"""The share of a rank's time that is taken to note where its main thread is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

from amp_launcher.settings import Settings
from amp_launcher.watchdog import LOOK_EVERY, Watchdog
from benchmarks.measure import Measured, Timing

ROUNDS, LOOKS = 5, 3000
SHARE = 0.001


def cost(folder: Path) -> Measured:
    """Seconds of one look, with the records that it leaves, during which the GIL is held, against the share of the time
    between two looks that they may take."""
    steps = iter(range(ROUNDS * LOOKS + 2))
    (folder / "attempts/1").mkdir(parents=True)
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
        dog = Watchdog(lambda: next(steps), Settings(train=None), folder, 0, lambda reason: None)
    sampled = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(LOOKS):
            dog.look()
        sampled.append((time.perf_counter() - began) / LOOKS)
    assert (folder / "attempts/1/pace-rank0.json").exists()
    return Measured(
        claim="to note where a rank is takes at most 0.1% of a step",
        limit=1.0,
        timings={
            "a look": Timing(seconds=tuple(sampled)),
            "0.1% of the time between two looks": Timing(seconds=(SHARE * LOOK_EVERY,) * ROUNDS),
        },
        note="a step itself has nothing to do for it",
    )
