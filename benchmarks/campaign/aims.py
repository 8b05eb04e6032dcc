"""Targets for a large GPU, and whether each is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.campaign import language, turns
from benchmarks.campaign.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """A ratio with a lower limit."""

    claim: str
    least: float
    ratio: float | None
    """None if one of its figures is missing."""

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "held" if self.ratio >= self.least else "not held"


def judge(rows: Sequence[Row]) -> list[Aim]:
    """The targets, compared with these rows."""
    values = {(row.part, row.name): row.value for row in rows}
    rates = {(row.part, row.name): row.more.get("tflops") for row in rows}

    def ratio(part: str, name: str, other: str) -> float | None:
        return _divide(values.get((part, name)), values.get((part, other)))

    ceiling = values.get(("ceiling", "bfloat16 products"))
    aims = [
        ("simplenet at o2 at least 10 times IEEE float32", 10.0, ratio("simplenet", "o2", "o0 ieee")),
        (
            "simplenet at o2 at least 75% of the measured bfloat16 ceiling",
            0.75,
            _divide(rates.get(("simplenet", "o2")), ceiling),
        ),
        ("ResNet-50 at o2 at least 3.5 times IEEE float32", 3.5, ratio("resnet50", "o2 256", "o0 ieee 256")),
        ("ResNet-50 at o2 at least twice TF32", 2.0, ratio("resnet50", "o2 256", "o0 tf32 256")),
    ]
    aims += [
        (f"{recipe}: o2 never slower than o1", 1.0, values.get((turns.PART, turns.of(recipe))))
        for recipe in turns.RECIPES
    ]
    by_hand = values.get((turns.PART, turns.BY_HAND))
    aims.append(("ResNet-50's o2 at least as fast as one by hand, within 2%", 0.98, by_hand))
    aims += [
        (
            f"gpt at {gemm}, compiled, at least as fast as in bfloat16",
            1.0,
            values.get((language.PART, language.gain(gemm))),
        )
        for gemm in language.GEMMS
    ]
    return [Aim(claim=claim, least=least, ratio=value) for claim, least, value in aims]


def _divide(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
