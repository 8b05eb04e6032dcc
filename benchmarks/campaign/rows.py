"""Rows of the table, and the time for them."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

WARM_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A measurement, a check, or one that was left out with a reason."""

    part: str
    """`ceiling`, `check`, a recipe's name, `by turns`, or `kernels`."""
    name: str
    value: float | None = None
    unit: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    """Further JSON values."""
    passed: bool | None = None
    """The outcome of a check."""
    left_out: str = ""
    """Why there is no value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Where to measure, how large and how long."""

    device: torch.device
    tiny: bool
    """Sizes for a rehearsal, whose figures are meaningless."""
    seconds: float
    """Time to measure a row for."""
    end: float = math.inf
    """The deadline, on the clock of `time.monotonic`."""

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def usable(self) -> bool:
        """Whether the device still works for this process: after some faults it doesn't until the process ends."""
        try:
            self.wait()
        except RuntimeError:
            return False
        return True

    def warm(self, act: Callable[[], object], least: int) -> None:
        """Repeat `act` `least` times, and until an idle GPU has raised its clocks."""
        began, done = time.perf_counter(), 0
        while done < (1 if self.tiny else least) or not (self.tiny or time.perf_counter() - began > WARM_SECONDS):
            act()
            self.wait()
            done += 1

    def time(self, act: Callable[[], object], warm_up: int = 5, least: int = 5, most: int = 50) -> list[float]:
        """Seconds of each repetition, by events on a GPU, so that Python may run ahead."""
        self.warm(act, warm_up)
        if self.device.type != "cuda":
            return _by_clock(act, 2 if self.tiny else least)
        began = time.perf_counter()
        act()
        self.wait()
        once = max(time.perf_counter() - began, 1e-6)
        count = max(least, min(most, int(self.seconds / once)))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            act()
            event.record()
        self.wait()
        return [first.elapsed_time(second) / 1000 for first, second in itertools.pairwise(events)]

    def peak_memory(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def forget(self) -> None:
        """Free the memory of the previous row, and reset the peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def _by_clock(act: Callable[[], object], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Makes one or more rows."""

    part: str
    name: str
    run: Callable[[Bench], list[Row]]
    estimate: float = 10.0
    """A generous estimate of its seconds on a large GPU."""
    rehearsed: bool = True


class Budget:
    """Runs tasks in turn while there is time."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def run(self, task: Task, bench: Bench) -> list[Row]:
        """The task's rows; one with the reason if it failed, or if the remaining time isn't enough."""
        if bench.tiny and not task.rehearsed:
            return [Row(part=task.part, name=task.name, left_out="not rehearsed")]
        left = self._end - self._clock()
        if left < task.estimate:
            return [Row(part=task.part, name=task.name, left_out=f"out of time: {max(left, 0):.0f} s were left")]
        try:
            bench.forget()
            return task.run(bench)
        except torch.cuda.OutOfMemoryError:
            return [Row(part=task.part, name=task.name, left_out="out of memory")]
        except subprocess.TimeoutExpired as error:
            return [Row(part=task.part, name=task.name, left_out=f"out of time: not done in {error.timeout:.0f} s")]
        except Exception as error:  # a GPU is had rarely: one row that breaks must not cost all others
            traceback.print_exc(file=sys.stderr)
            return [Row(part=task.part, name=task.name, left_out=f"{type(error).__name__}: {error}"[:300])]


def median(seconds: list[float]) -> float:
    return statistics.median(seconds)
