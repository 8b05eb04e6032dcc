"""Rows of optimizer steps from the values of their executions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from amp_launcher.loop.protocols import Executed
from amp_launcher.loop.recorder import Recorder
from amp_launcher.loop.spans import Span
from amp_launcher.metrics import STEP


class Device:
    """Its values are on the host, and its clock ticks a second at each mark."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        self.now += 1
        return self.now

    def seconds(self, began: float, ended: float) -> float:
        return ended - began

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        return [value for value, times in zip(values, count, strict=True) for _ in range(times)]

    def peak_memory(self) -> int:
        return 7

    def reset_peak_memory(self) -> None:
        pass


ALONE: Any = SimpleNamespace(size=1, sum=list)


def recorded(tokens: int = 0, **given: Any) -> list[dict[str, Any]]:
    recorder = Recorder(ALONE, Device(), batch=8, skipped=2, tokens=tokens)
    outcome = SimpleNamespace(overflowed=True, loss_scale=4.0, grad_norm=0.5)
    recorder.begin(timed=True)
    executed = Executed(**{"loss": 1.5, "lr": 0.1, "outcome": outcome, **given})
    recorder.end(executed, Span(first=3, count=2, epoch=0, within=2), timed=True)
    return recorder.flush()


def test_a_row_has_the_keys_that_every_framework_writes() -> None:
    rows = recorded()
    assert [list(row) for row in rows] == [list(STEP)] * 2
    assert [(row["step"], row["seconds"], row["skipped_total"]) for row in rows] == [(3, 0.5, 3), (4, 0.5, 4)]
    assert [(row["loss_scale"], row["skipped"], row["grad_norm"]) for row in rows] == [(4.0, True, 0.5)] * 2


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"loss": {"generator": 1.0, "discriminator": 2.0}}, {"losses": {"generator": 1.0, "discriminator": 2.0}}),
        ({"waited": 1.0}, {"data_seconds": 0.5}),
        ({"tokens": 100}, {"tokens_per_second": 1600.0}),
    ],
)
def test_a_row_has_what_only_some_recipes_have(given: dict[str, Any], more: dict[str, Any]) -> None:
    row = recorded(**given)[0]
    assert {key: row[key] for key in row if key not in STEP} == more
