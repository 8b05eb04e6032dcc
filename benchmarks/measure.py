"""Timing in alternation, so that other load on the machine affects both sides of a ratio alike."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Skipped(Exception):
    """The benchmark can't be run here; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The times of one case, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One claim and its measurements. A ratio is ours to theirs: lower is better."""

    claim: str
    limit: float
    """The limit of the ratio."""
    timings: Mapping[str, Timing]
    """By case: first ours, then theirs, then further timings to report."""
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Of two times taken one after the other, round by round."""
        ours, theirs, *_ = self.timings.values()
        return [mine / other for mine, other in zip(ours.seconds, theirs.seconds, strict=True)]

    @property
    def ratio(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the ratio; None where there are too few rounds."""
        return median_interval(self.ratios)

    @property
    def ratio_of_fastest(self) -> float:
        ours, theirs, *_ = self.timings.values()
        return ours.fastest / theirs.fastest

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of the median, for any distribution; None for fewer than six values at 95%.

    Between the k-th smallest and the k-th largest value: the median lies outside where fewer than k of n values fall
    on one side of it. Source: Conover, Practical Nonparametric Statistics (1999), 3.2.
    """
    ordered, count = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < count and outside + 2 * math.comb(count, k) / 2**count <= 1 - confidence:
        outside += 2 * math.comb(count, k) / 2**count
        k += 1
    return (ordered[k - 1], ordered[-k]) if k else None


def by_turns(cases: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Run the cases in turn for `rounds` rounds, every other round in reverse; a case returns its seconds.

    The first `warm_up` rounds, which fill caches, are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warm_up + rounds):
        names = list(cases) if number % 2 == 0 else list(reversed(cases))
        for name in names:
            elapsed = cases[name]()
            if number >= warm_up:
                seconds[name].append(elapsed)
    return {name: Timing(seconds=tuple(times)) for name, times in seconds.items()}


def torch_processes() -> Any:
    """A multiprocessing context of fresh processes, forked from one that has imported torch and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def command(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Callable[[], float]:
    """A case: a command from start to end. Raises `RuntimeError` with the end of its output if it fails."""

    def run() -> float:
        began = time.perf_counter()
        done = subprocess.run(
            argv, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        seconds = time.perf_counter() - began
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
        return seconds

    return run
