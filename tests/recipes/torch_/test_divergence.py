"""The real trainer, past saving."""

from __future__ import annotations

from pathlib import Path

from recipes.divergence import PATIENCE
from tests.recipes.torch_.trainers import result, rows, run, steps


def test_all_ranks_end_together_when_the_loss_is_no_number_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = run(("amp=o0", "train.lr=1e20", "batch=32", "steps=500", f"run={folder}"), ranks=2)
    assert ended.returncode == 1
    assert ended.stderr.count("mnist: the loss is nan since step 2; try a lower learning rate") == 1
    found = result(folder)
    assert (found["status"], found["reason"]) == ("failed", "the loss is nan since step 2; try a lower learning rate")
    assert found["steps"] == len(steps(folder)) < 500
    assert steps(folder)[1]["nonfinite"] == ["loss"]
    assert rows(folder)[-1]["event"] == "end"
    assert not (folder / "checkpoints").exists()


def test_a_scale_that_only_overflows_ends_the_run_and_leaves_its_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mode = ("amp=o2", "amp.dtype=float16", "loss_scale=static", "loss_scale.init=1e38")
    ended = run((*mode, "batch=1", "steps=500", "checkpoint.every=8", f"run={folder}"))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert result(folder)["reason"].startswith("every step since step 1 overflowed and was skipped")
    assert PATIENCE <= len(steps(folder)) < 500
    assert result(folder)["loss_scale"]["skipped_steps"] == len(steps(folder))
    assert sorted(each.name for each in (folder / "checkpoints").iterdir()) == ["step-000000008", "step-000000016"]
