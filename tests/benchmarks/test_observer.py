from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import observer

TINY = ("amp=o2", "train.layers=1", "train.width=16", "train.heads=2", "train.context=16", "batch=2")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, text: Path) -> None:
    monkeypatch.setattr(observer, "WORDS", (*TINY, "data=tokens", f"data.dir={text}"))
    monkeypatch.setattr(observer, "ROUNDS", 2)
    monkeypatch.setattr(observer, "OBSERVED_ROUNDS", 2)


def test_the_operations_of_an_observed_step_are_counted(tmp_path: Path) -> None:
    measured = observer.step(tmp_path)
    assert measured.timings.keys() >= {"an observed step", "the same step"}
    counted = re.search(r"proof adds .* us for each of a step's ([\d,]+) operations", measured.note)
    assert counted and 150 < int(counted[1].replace(",", "")) < 1000
