"""A replay against the record of a run that took several steps in one execution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amp_launcher.loop.replay import ORIGINAL, Replay, Request
from amp_launcher.step_record import StepRecord


def ranks(size: int) -> Any:
    """So many of them that all say the same."""
    return SimpleNamespace(
        rank=0,
        size=size,
        gather=lambda value: [value] * size,
        broadcast=lambda value: value,
        from_rank_zero=lambda make: make(),
    )


FACTS = {"exact": True}
WEIGHTS, OTHERS = {"weight": bytes(8)}, {"weight": b"another1"}
SOURCE: Any = SimpleNamespace(digests=lambda: WEIGHTS)


def record(run: Path, *ends: int, loss: float = 1.0, weights: Mapping[str, bytes] = WEIGHTS) -> None:
    """The record of executions that end with these steps."""
    run.mkdir(exist_ok=True)
    written = StepRecord(run, 0, FACTS, 0)
    for end in ends:
        written.add(end, weights)
    written.write([{"step": step, "loss": loss, "grad_norm": None} for step in range(1, ends[-1] + 1)])


def replay(folder: Path, *ends: int) -> Replay:
    """Of the first 15 steps of a run with these executions; the replay took ten of them, and then five."""
    record(folder, 10, 15)
    record(folder / ORIGINAL, *ends)
    return Replay(Request(run="run", first=0, step=15), folder, ranks(1), SOURCE)


def test_tensors_are_compared_after_steps_that_both_ended_an_execution_with(tmp_path: Path) -> None:
    replayed = replay(tmp_path, 5, 15)
    assert replayed.not_comparable(FACTS) is None
    assert replayed.verdict()["verdict"] == "same"


def test_a_last_step_inside_an_execution_is_not_comparable(tmp_path: Path) -> None:
    record = replay(tmp_path, 10, 20).not_comparable(FACTS) or {}
    assert record["why"] == "the record has no tensors of step 15, which is not the last of an execution; say step=10"


@pytest.mark.parametrize(
    ("size", "differs", "why"),
    [
        (
            1,
            {},
            "steps 11 to 15 of run, replayed from the checkpoint of step 10, are bit-identical in loss and 1 tensors",
        ),
        (2, {}, "are bit-identical in loss and 1 tensors on each of 2 ranks"),
        (1, {"weights": OTHERS}, "step 11 of run is the first that differs, in weight (1 of 1 tensors)"),
        (1, {"loss": 2.0}, "step 11 of run is the first that differs, in its loss"),
        (2, {"loss": 2.0}, "in its loss on rank 0"),
        (2, {"loss": 2.0, "weights": OTHERS}, "in weight on rank 0 (1 of 1 tensors), and in its loss"),
    ],
)
def test_a_replay_from_a_checkpoint_on_says_what_is_the_same_or_differs_first(
    tmp_path: Path, size: int, differs: Any, why: str
) -> None:
    record(tmp_path, 11, 15)
    record(tmp_path / ORIGINAL, 11, 15, **differs)
    replayed = Replay(Request(run="run", first=10, step=15), tmp_path, ranks(size), SOURCE)
    assert replayed.not_comparable(FACTS) is None
    assert replayed.verdict()["why"].endswith(why)
