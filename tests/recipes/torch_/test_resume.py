"""A run that is killed, anywhere, and started again ends as if nothing had happened, bit by bit."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.recipes.data.idx_files import write_mnist
from tests.recipes.torch_.trainers import SUICIDAL, differences, last_state, result, rows, run, start, steps, succeed

STEPS = 24
FLOAT16 = ("amp.dtype=float16", "loss_scale=dynamic", "loss_scale.init=268435456", "loss_scale.growth_every=3")
BFLOAT16 = ("amp.dtype=bfloat16",)


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A job of three epochs of eight steps, on 32 images; 24 steps, saved at every fifth."""
    folder = write_mnist(tmp_path_factory.mktemp("mnist"), train=32, held_out=4)  # a CPU takes long in float16
    job = ["data=mnist", f"data.dir={folder}", "batch=4", "epochs=3", "checkpoint.every=5"]
    return [*job, "train.clip=1", "train.lr=0.1"]


def assert_same_end(killed: Path, whole: Path) -> None:
    one, other = last_state(killed), last_state(whole)
    for key in ("model", "optimizers", "precision", "random"):
        assert differences(one[key], other[key], key) == []
    assert one["progress"]["step"] == other["progress"]["step"] == STEPS
    columns = ("step", "epoch", "loss", "lr", "loss_scale", "skipped", "skipped_total", "grad_norm")
    assert [[row[each] for each in columns] for row in steps(killed)] == [
        [row[each] for each in columns] for row in steps(whole)
    ]
    assert [row["step"] for row in steps(killed)] == list(range(1, STEPS + 1))
    assert result(killed)["eval"] == result(whole)["eval"]
    assert result(killed)["determinism"] == "exact"
    assert result(killed)["observed"]["verdict"] == "proved", result(killed)["observed"]


# The other two pairs of level and dtype are those of two ranks.
@pytest.mark.slow
@pytest.mark.parametrize(("level", "dtype"), [("o1", FLOAT16), ("o2", BFLOAT16)], ids=["o1-float16", "o2-bfloat16"])
def test_killed_in_a_random_step_and_in_a_save(tmp_path, words, level, dtype):
    job = [f"amp={level}", *dtype, *words]
    succeed([*job, f"run={tmp_path / 'whole'}"])
    at = str(random.SystemRandom().randint(1, 19))  # of the 19 steps that are left after the kill in the second save
    again = [*job, f"run={tmp_path / 'killed'}"]
    for place in ({"KILL_AT_RENAME": "2"}, {"KILL_AT_BACKWARD": at}):
        assert run(again, program=SUICIDAL, **place).returncode == -signal.SIGKILL
    said = succeed(again)
    assert "goes on after step" in said, f"killed at step {at}"
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    if dtype == FLOAT16:
        assert 0 < result(tmp_path / "whole")["loss_scale"]["skipped_steps"] < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("level", "dtype"), [("o1", BFLOAT16), ("o2", FLOAT16)], ids=["o1-bfloat16", "o2-float16"])
def test_two_ranks_of_which_one_is_killed_and_later_all_are(tmp_path, words, level, dtype):
    job = [f"amp={level}", *dtype, "accumulate=2", *words]
    succeed([*job, f"run={tmp_path / 'whole'}"], ranks=2)
    again = [*job, f"run={tmp_path / 'killed'}"]
    at = str(random.SystemRandom().randint(1, 24))  # two backwards a step
    assert run(again, 2, SUICIDAL, KILL_AT_BACKWARD=at, KILL_RANK="1").returncode != 0
    process = start(again, ranks=2)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / "checkpoints" / "step-000000015").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    succeed(again, ranks=2)
    assert [row["resumed_from"] for row in rows(tmp_path / "killed") if row.get("event") == "start"][-1] >= 15
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_killed_before_the_first_checkpoint_it_begins_anew(tmp_path, words):
    job = ["amp=o2", *words, "steps=4", f"run={tmp_path}"]
    job.remove("epochs=3")
    assert run(job, program=SUICIDAL, KILL_AT_BACKWARD="3").returncode == -signal.SIGKILL
    assert "goes on" not in succeed(job)
    assert [row["step"] for row in steps(tmp_path)] == [1, 2, 3, 4]


def test_a_finished_run_goes_on_with_more_epochs_and_ends_as_if_it_had_been_told_at_once(tmp_path, words):
    succeed(["amp=o2", *words, f"run={tmp_path / 'whole'}"])
    shorter = [word for word in words if word != "epochs=3"]
    succeed(["amp=o2", *shorter, "epochs=1", f"run={tmp_path / 'killed'}"])
    assert result(tmp_path / "killed")["steps"] == 8
    succeed(["amp=o2", *words, f"run={tmp_path / 'killed'}"])
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    assert result(tmp_path / "killed")["resumed_from"] == 8


def test_a_finished_run_that_is_started_again_only_writes_its_result_again(tmp_path, words):
    job = ["amp=o1", *words, f"run={tmp_path}"]
    succeed(job)
    before, state = result(tmp_path), last_state(tmp_path)
    (tmp_path / "result.json").unlink()
    succeed(job)
    after = result(tmp_path)
    for key in ("loss", "eval", "observed", "throughput", "steps", "updates", "status"):
        assert after[key] == before[key]
    assert differences(state["model"], last_state(tmp_path)["model"]) == []


def test_a_run_does_not_go_on_as_another_job(tmp_path, words):
    succeed(["amp=o1", *words, f"run={tmp_path}"])
    for word in ("seed=1", "train.rho=0.5"):
        ended = run(["amp=o1", *words, word, f"run={tmp_path}"])
        assert ended.returncode == 2
        assert word in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    ended = run(["amp=o1", *[word for word in words if word != "epochs=3"], "epochs=2", f"run={tmp_path}"])
    assert ended.returncode == 2
    assert "has done 24 steps, and this asks for 16 in all" in ended.stderr
