"""A run that is killed, anywhere, and started again ends as if nothing had happened, bit by bit."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from recipes.torch_ import loop, mnist
from tests.recipes.data.idx_files import write_mnist
from tests.recipes.torch_.trainers import SUICIDAL, differences, last_state, result, rows, run, start, steps, succeed

STEPS = 24


class Job(NamedTuple):
    """A job of `STEPS` steps, saved at every fifth."""

    recipe: str
    words: list[str]

    @property
    def program(self) -> tuple[str, ...]:
        return ("-m", f"recipes.torch_.{self.recipe}")


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Three epochs of eight steps, on 64 images, with evaluations and dropout."""
    folder = write_mnist(tmp_path_factory.mktemp("mnist"))
    job = ["data=mnist", f"data.dir={folder}", "batch=8", "epochs=3", "checkpoint.every=5"]
    return [*job, "train.clip=1", "train.lr=0.1"]


def here(*words: str) -> int:
    """The trainer's exit code, in this process."""
    return loop.main("mnist", mnist.train, words)


@pytest.fixture
def job(words, dtype) -> Job:
    if dtype == "bfloat16":
        return Job("mnist", ["amp.dtype=bfloat16", *words])
    # With skipped steps; without convolutions, for which a CPU takes long in float16.
    scale = ("loss_scale=dynamic", "loss_scale.init=268435456", "loss_scale.growth_every=3")
    small = ("train.width=32", "batch=16", f"steps={STEPS}", "checkpoint.every=5")
    return Job("simplenet", ["amp.dtype=float16", *scale, *small])


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
@pytest.mark.parametrize(("level", "dtype"), [("o1", "float16"), ("o2", "bfloat16")])
def test_killed_in_a_random_step_and_in_a_save(tmp_path, job, level, dtype):
    whole, again = ([f"amp={level}", *job.words, f"run={tmp_path / name}"] for name in ("whole", "killed"))
    succeed(whole, program=job.program)
    at = str(random.SystemRandom().randint(1, 19))  # of the 19 steps that are left after the kill in the second save
    for place in ({"KILL_AT_RENAME": "2"}, {"KILL_AT_BACKWARD": at}):
        assert run(again, program=SUICIDAL, RECIPE=job.recipe, **place).returncode == -signal.SIGKILL
    said = succeed(again, program=job.program)
    assert "resumed after step" in said, f"killed at step {at}"
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    if dtype == "float16":
        assert 0 < result(tmp_path / "whole")["loss_scale"]["skipped_steps"] < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("level", "dtype"), [("o1", "bfloat16"), ("o2", "float16")])
def test_two_ranks_of_which_one_is_killed_and_later_all_are(tmp_path, job, level, dtype):
    words = [f"amp={level}", "accumulate=2", *job.words]
    succeed([*words, f"run={tmp_path / 'whole'}"], ranks=2, program=job.program)
    again = [*words, f"run={tmp_path / 'killed'}"]
    at = str(random.SystemRandom().randint(1, 24))  # two backwards a step
    killed = run(again, 2, SUICIDAL, RECIPE=job.recipe, KILL_AT_BACKWARD=at, KILL_RANK="1")
    assert killed.returncode != 0
    process = start(again, ranks=2, program=job.program)
    deadline = time.monotonic() + 120
    while max((tmp_path / "killed" / "checkpoints").glob("step-*"), default=Path()).name < "step-000000015":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    succeed(again, ranks=2, program=job.program)
    assert [row["resumed_from"] for row in rows(tmp_path / "killed") if row.get("event") == "start"][-1] >= 15
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_killed_before_the_first_checkpoint_it_begins_anew(tmp_path, words):
    job = ["amp=o2", *words, "steps=4", f"run={tmp_path}"]
    job.remove("epochs=3")
    assert run(job, program=SUICIDAL, KILL_AT_BACKWARD="3").returncode == -signal.SIGKILL
    assert "goes on" not in succeed(job)
    assert [row["step"] for row in steps(tmp_path)] == [1, 2, 3, 4]


def test_a_finished_run_goes_on_with_more_epochs_and_ends_as_if_it_had_been_told_at_once(tmp_path, words):
    shorter = [word for word in words if word != "epochs=3"]
    assert here("amp=o2", *words, f"run={tmp_path / 'whole'}") == loop.DONE
    assert here("amp=o2", *shorter, "epochs=1", f"run={tmp_path / 'killed'}") == loop.DONE
    assert result(tmp_path / "killed")["steps"] == 8
    assert here("amp=o2", *words, f"run={tmp_path / 'killed'}") == loop.DONE
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    assert result(tmp_path / "killed")["resumed_from"] == 8


def test_a_finished_run_that_is_started_again_only_writes_its_result_again(tmp_path, words):
    job = ["amp=o1", *words, f"run={tmp_path}"]
    assert here(*job) == loop.DONE
    before, state = result(tmp_path), last_state(tmp_path)
    (tmp_path / "result.json").unlink()
    assert here(*job) == loop.DONE
    after = result(tmp_path)
    for key in ("loss", "eval", "observed", "throughput", "steps", "updates", "status"):
        assert after[key] == before[key]
    assert differences(state["model"], last_state(tmp_path)["model"]) == []


def test_a_run_does_not_go_on_as_another_job(tmp_path, words, capsys):
    assert here("amp=o1", *words, f"run={tmp_path}") == loop.DONE
    capsys.readouterr()
    for word in ("seed=1", "train.rho=0.5"):
        assert here("amp=o1", *words, word, f"run={tmp_path}") == 2
        said = capsys.readouterr().err
        assert word in said
        assert len(said.splitlines()) == 1
    shorter = [word for word in words if word != "epochs=3"]
    assert here("amp=o1", *shorter, "epochs=2", f"run={tmp_path}") == 2
    assert "has done 24 steps, and this asks for 16 in all" in capsys.readouterr().err
