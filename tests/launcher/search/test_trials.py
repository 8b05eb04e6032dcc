"""What a trial measures on its way, by steps that all trials have in common."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.runs.schema import Losses, ResultRecord
from launcher.runs.store import Run
from launcher.search.trials import Trial, rounded
from tests.launcher import run_folders


def row(step: int, **values: object) -> str:
    return json.dumps({"step": step, "time": 1.0, "loss": None, **values}) + "\n"


def test_rows_of_single_steps_are_means_of_those_that_begin_alike(tmp_path: Path) -> None:
    folder = run_folders.make(tmp_path)
    trial = Trial(0, Run(str(tmp_path), folder.name), "loss")
    rows = folder / "metrics.jsonl"
    rows.write_text("".join(row(step, loss=float(step)) for step in (1, 2, 100, 104, 109, 110)))
    assert list(trial.new_values()) == [(1, 1.0), (2, 2.0), (100, 313 / 3)]
    assert list(trial.new_values()) == []
    with rows.open("a") as stream:
        stream.write(row(120, loss=5.0) + row(121, loss=7.0))
    assert list(trial.new_values()) == [(110, 110.0)]
    rows.write_text("".join(row(step, loss=float(step)) for step in (1, 2, 100, 130)))  # cut back, as by a resume
    assert list(trial.new_values()) == [(120, 6.0)]  # and none of those that were given
    assert [rounded(step) for step in (7, 42, 469, 12345)] == [7, 42, 460, 12000]


def test_evaluations_and_logged_names_are_read_by_the_words_of_tables(tmp_path: Path) -> None:
    folder = run_folders.make(tmp_path)
    text = json.dumps({"event": "eval", "step": 469, "epoch": 0, "time": 1.0, "accuracy": 0.5, "loss": 2.0}) + "\n"
    (folder / "metrics.jsonl").write_text(row(1, logged={"score": 3.0}) + row(2, logged={"score": 4.0}) + text)
    run = Run(str(tmp_path), folder.name)
    found = {
        name: list(Trial(0, run, name).new_values()) for name in ("accuracy", "eval.accuracy", "eval.loss", "score")
    }
    assert found == {
        "accuracy": [(469, 0.5)],
        "eval.accuracy": [(469, 0.5)],
        "eval.loss": [(469, 2.0)],
        "score": [(1, 3.0)],
    }
    result = ResultRecord(eval={"accuracy": 0.5, "loss": 2.0}, logged={"score": 4.0}, loss=Losses(last=1.0))
    values = [Trial(0, run, name).value(result) for name in ("eval.accuracy", "eval.loss", "loss", "score", "other")]
    assert values == [0.5, 2.0, 1.0, 4.0, None]
