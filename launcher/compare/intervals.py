"""Confidence intervals of ratios of paired throughputs. Pure functions of numbers.

Two arms are measured in the same rounds, so what a round has in common, such as a machine that was busy then, falls out
of their ratio. Ratios are averaged as logarithms, where twice as fast and half as fast lie equally far from equal; the
interval is Student's for the mean of paired differences.
Sources: Student, "The Probable Error of a Mean", Biometrika 6 (1908); for ratios by logarithms, Fleming and Wallace,
"How Not To Lie With Statistics", CACM 29 (1986).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher import units

ENOUGH = 5
"""Least number of pairs for an interval: with fewer, one outlier decides it."""
CONFIDENCE = 0.95
EQUAL = 0.05
"""Width of an interval around 1 below which the two are equally fast to people."""
NARROW = 0.02
"""Width of an interval below which two decimals do not distinguish its ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One throughput over another, from pairs."""

    mean: float
    """The geometric mean of the pairs' ratios."""
    pairs: int
    low: float | None = None
    high: float | None = None
    """The 95% interval, where there are pairs enough."""

    @property
    def differs(self) -> bool | None:
        """Whether the interval leaves out 1; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high

    @property
    def is_noisy(self) -> bool:
        """Whether the interval holds 1 and more than what is no difference to people."""
        return bool(self.low and self.high and self.low <= 1 <= self.high and self.high / self.low > 1 + EQUAL)

    def text(self, value: float) -> str:
        """The mean or a bound as text, with a third decimal where the interval is narrow."""
        narrow = self.low is not None and self.high is not None and self.high - self.low < NARROW
        return f"{value:.3f}" if narrow and value >= 0.1 else units.ratio(value)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratio of paired positive numbers, ours over theirs, with its interval from five pairs on.

    Raises `ValueError` for none, for different lengths, and for numbers that are not above zero.
    """
    logarithms = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    count = len(logarithms)
    mean = statistics.fmean(logarithms)
    if count < ENOUGH:
        return Ratio(mean=math.exp(mean), pairs=count)
    low, high = mean_interval(logarithms)
    return Ratio(mean=math.exp(mean), pairs=count, low=math.exp(low), high=math.exp(high))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval for the mean of at least `ENOUGH` values."""
    mean, count = statistics.fmean(values), len(values)
    margin = t_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return mean - margin, mean + margin


def t_quantile(freedom: int) -> float:
    """The value below which Student's t with at least four degrees of freedom lies with the probability at the upper
    end of an interval; to three parts in 10,000 of four, and closer for more.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    x = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
