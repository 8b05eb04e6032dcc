"""A replay against the record of a run that took several steps in one execution."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amp_launcher.loop.replay import ORIGINAL, Replay, Request
from amp_launcher.step_record import StepRecord

ALONE: Any = SimpleNamespace(rank=0, size=1, gather=lambda value: [value], broadcast=lambda value: value)
ALONE.from_rank_zero = lambda make: make()
FACTS = {"exact": True}
WEIGHTS = {"weight": bytes(8)}
SOURCE: Any = SimpleNamespace(digests=lambda: WEIGHTS)


def record(run: Path, *ends: int) -> None:
    """The record of executions that end with these steps."""
    run.mkdir(exist_ok=True)
    written = StepRecord(run, 0, FACTS, 0)
    for end in ends:
        written.add(end, WEIGHTS)
    written.write([{"step": step, "loss": 1.0, "grad_norm": None} for step in range(1, ends[-1] + 1)])


def replay(folder: Path, *ends: int) -> Replay:
    """Of the first 15 steps of a run with these executions; the replay took ten of them, and then five."""
    record(folder, 10, 15)
    record(folder / ORIGINAL, *ends)
    return Replay(Request(run="run", first=0, step=15), folder, ALONE, SOURCE)


def test_tensors_are_compared_after_steps_that_both_ended_an_execution_with(tmp_path: Path) -> None:
    replayed = replay(tmp_path, 5, 15)
    assert replayed.not_comparable(FACTS) is None
    assert replayed.verdict()["verdict"] == "same"


def test_a_last_step_inside_an_execution_is_not_comparable(tmp_path: Path) -> None:
    record = replay(tmp_path, 10, 20).not_comparable(FACTS) or {}
    assert record["why"] == "the record has no tensors of step 15, which is not the last of an execution; say step=10"
