"""Whether weights were rounded stochastically, by how many went up, and to the farther of the two values next to them.

An optimizer's float32 result x lies a share s of the way from the bfloat16 value next to it that is nearer to zero, to
the other one. Stochastic rounding takes the other one with probability s, independently for each weight. Both counts
are then near their means, sums of s and of min(s, 1 - s), and neither has more variance than the sum of s(1 - s).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from amp_launcher.precision.findings import Report
from amp_launcher.precision.levels import ENOUGH

DEVIATIONS = 6
"""Standard deviations from the mean that contradict: chance goes so far once in 500 million counts."""
ENOUGH_VARIANCE = 100
"""From here rounding to nearest, toward zero or always away from it is at least ten standard deviations off."""


def contradictions(reports: Sequence[Report]) -> Iterator[str]:
    """Observations that contradict stochastic rounding. Ranks are not added up: they share noise."""
    for rank, (report, seen) in _by_rank(reports).items():
        place = f"rank {rank}: " if report["world_size"] > 1 else ""
        if seen["carried"]:
            yield (
                f"{place}{seen['carried']:,} weights were between two bfloat16 values before the step: the optimizer "
                "has float32 masters, and amp.rounding=stochastic has none"
            )
        if seen["outside"]:
            yield (
                f"{place}{seen['outside']:,} weights became neither of the two bfloat16 values next to what the "
                "optimizer computed"
            )
        for count, where in (("farther", "to the farther of the two"), ("up", "away from zero")):
            rounded, mean = seen[count], seen[f"expected_{count}"]
            if _enough(seen) and abs(rounded - mean) > DEVIATIONS * math.sqrt(seen["variance"]):
                yield (
                    f"{place}of {seen['between']:,} weights between two bfloat16 values {rounded:,} were rounded "
                    f"{where}, and stochastic rounding gives about {mean:,.0f}"
                )


def unseen(reports: Sequence[Report]) -> str:
    """Why it isn't known how weights were rounded, or an empty string."""
    ranks = _by_rank(reports).values()
    if not all(seen["weights"] for _, seen in ranks):
        return "no observed step rounded weights stochastically"
    if not all(_enough(seen) for _, seen in ranks):
        return (
            "amp.rounding=stochastic: too few weights were between two bfloat16 values to tell how they were rounded; "
            "a larger model or learning rate shows it"
        )
    return ""


def summary(reports: Sequence[Report]) -> str:
    """The evidence, of one rank."""
    _, seen = next(iter(_by_rank(reports).values()))
    return (
        f"weights rounded stochastically: {seen['farther']:,} of {seen['between']:,} to the farther value, where "
        f"chance gives {seen['expected_farther']:,.0f}"
    )


def left_out(report: Report) -> int:
    """Float32 weights that were stepped in this step, and are neither rounded nor kept in float32."""
    kept = sum(entry["elements"] for entry in report["parameters"] if entry["dtype"] == "float32")
    stepped = report["optimizer"].get("float32", 0) - kept
    rounded = report["rounded"].get("weights", 0)
    return int(stepped - rounded) if rounded < ENOUGH * stepped else 0


def _by_rank(reports: Sequence[Report]) -> dict[int, tuple[Report, Counter[str]]]:
    ranks: dict[int, tuple[Report, Counter[str]]] = {}
    for report in reports:
        ranks.setdefault(report["rank"], (report, Counter()))[1].update(report["rounded"])
    return ranks


def _enough(seen: Mapping[str, float]) -> bool:
    return seen["variance"] >= ENOUGH_VARIANCE
