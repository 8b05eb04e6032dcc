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
    """Student's interval for the mean of at least two values."""
    mean, count = statistics.fmean(values), len(values)
    margin = t_quantile((1 + CONFIDENCE) / 2, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return mean - margin, mean + margin


def t_quantile(probability: float, freedom: int) -> float:
    """The value below which Student's t with so many degrees of freedom lies with this probability, 0.5 <= p < 1.

    By bisection of `t_probability`, to 12 digits or so.
    """
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def t_probability(value: float, freedom: int) -> float:
    """The probability that Student's t lies below the value, by elementary functions.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(value / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, total = cosine, 0.0
        for step in range(1, freedom - 1, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term, total = 1.0, 0.0
        for step in range(0, freedom, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        inside = sine * total
    return (1 + inside) / 2
