"""The memory of timed steps, with a stand-in for a GPU's allocator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amp_launcher.loop.peak_memory import PeakMemory


class Allocator:
    """Its peak is the most since the reset; weights stay allocated."""

    weights = 10

    def __init__(self) -> None:
        self.peak = 0

    def take(self, temporary: int) -> None:
        self.peak = max(self.peak, self.weights + temporary)

    def peak_memory(self) -> int:
        return self.peak

    def reset_peak_memory(self) -> None:
        self.peak = self.weights


AUTOTUNER, OBSERVED, EVALUATION = ("start", 90), ("observed", 70), ("evaluation", 80)


@pytest.mark.parametrize(
    ("phases", "peak", "startup"),
    [
        ([AUTOTUNER, ("timed", 20)], 30, 100),
        ([AUTOTUNER, ("timed", 20), OBSERVED, ("timed", 25), EVALUATION], 35, 100),
        ([AUTOTUNER, ("timed", 20), OBSERVED, ("timed", 15), ("save", 60)], 30, 100),
        ([("start", 5), ("timed", 20), EVALUATION], 30, 15),
        ([AUTOTUNER, OBSERVED], 100, None),
    ],
)
def test_only_timed_steps_count_once_there_are_any(phases: list[tuple[str, int]], peak: int, startup: int) -> None:
    allocator = Allocator()
    memory = PeakMemory(allocator)  # type: ignore[arg-type]
    for phase, temporary in phases:
        memory.enter(timed=phase == "timed")
        allocator.take(temporary)
    assert memory.fields() == {"peak_memory_bytes": peak, "startup_memory_bytes": startup}


def test_the_most_of_any_rank_counts() -> None:
    allocator = Allocator()
    memory = PeakMemory(allocator)  # type: ignore[arg-type]
    allocator.take(90)
    memory.enter(timed=True)
    allocator.take(20)
    group: Any = SimpleNamespace(gather=lambda own: [own, (40, None)])
    assert memory.fields(group) == {"peak_memory_bytes": 40, "startup_memory_bytes": 100}
