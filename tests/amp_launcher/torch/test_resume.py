"""A run that is killed, anywhere, and started again ends as if it had not been, bit by bit."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from amp_launcher.recipes.mnist import train_torch as mnist
from amp_launcher.torch import loop
from tests.amp_launcher.torch.trainers import (
    SUICIDAL,
    differences,
    last_state,
    result,
    rows,
    run,
    start,
    steps,
    succeed,
)
from tests.recipes.data.idx_files import write_mnist

STEPS = 24


class Job(NamedTuple):
    """A job of `STEPS` steps, saved at every fifth."""

    recipe: str
    words: list[str]

    @property
    def program(self) -> tuple[str, ...]:
        return ("-m", f"amp_launcher.recipes.{self.recipe}.train_torch")


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Eight steps an epoch, on 64 images, with evaluations and dropout."""
    folder = write_mnist(tmp_path_factory.mktemp("mnist"))
    return ["data=mnist", f"data.dir={folder}", "batch=8", "checkpoint.every=5", "train.clip=1", "train.lr=0.1"]


def train(folder: Path, *words: str) -> int:
    """The trainer's exit code, in this process."""
    return loop.main("mnist", mnist.train, [*words, f"run={folder}"])


@pytest.fixture
def job(words, dtype) -> Job:
    if dtype == "bfloat16":
        return Job("mnist", ["amp.dtype=bfloat16", "epochs=3", *words])
    # With skipped steps; without convolutions, for which a CPU takes long in float16.
    scale = ("loss_scale=dynamic", "loss_scale.init=268435456", "loss_scale.growth_every=3")
    small = ("train.width=32", "batch=16", f"steps={STEPS}", "checkpoint.every=5")
    return Job("simplenet", ["amp.dtype=float16", *scale, *small])


def assert_same_end(killed: Path, reference: Path) -> None:
    one, other = last_state(killed), last_state(reference)
    for key in ("model", "optimizers", "precision", "random"):
        assert differences(one[key], other[key], key) == []
    assert one["progress"]["step"] == other["progress"]["step"] == STEPS
    columns = ("step", "epoch", "loss", "lr", "loss_scale", "skipped", "skipped_total", "grad_norm")
    values = [[[row[column] for column in columns] for row in steps(folder)] for folder in (killed, reference)]
    assert values[0] == values[1]
    assert [row[0] for row in values[0]] == list(range(1, STEPS + 1))
    record = result(killed)
    assert record["eval"] == result(reference)["eval"]
    assert (record["determinism"], record["observed"]["verdict"]) == ("exact", "proved"), record["observed"]


# The other two pairs of level and dtype are those of two ranks.
@pytest.mark.slow
@pytest.mark.parametrize(("level", "dtype"), [("o1", "float16"), ("o2", "bfloat16")])
def test_killed_in_a_random_step_and_in_a_save(tmp_path, job, level, dtype):
    reference, killed = tmp_path / "reference", tmp_path / "killed"
    words = [f"amp={level}", *job.words]
    succeed([*words, f"run={reference}"], program=job.program)
    at = str(random.SystemRandom().randint(1, 19))  # of the 19 steps that are left after the kill in the second save
    for place in ({"KILL_AT_RENAME": "2"}, {"KILL_AT_BACKWARD": at}):
        ended = run([*words, f"run={killed}"], program=SUICIDAL, RECIPE=job.recipe, **place)
        assert ended.returncode == -signal.SIGKILL
    printed = succeed([*words, f"run={killed}"], program=job.program)
    assert "resumed after step" in printed, f"killed at step {at}"
    assert_same_end(killed, reference)
    if dtype == "float16":
        assert 0 < result(reference)["loss_scale"]["skipped_steps"] < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("level", "dtype"), [("o1", "bfloat16"), ("o2", "float16")])
def test_two_ranks_of_which_one_is_killed_and_later_all_are(tmp_path, job, level, dtype):
    reference, killed = tmp_path / "reference", tmp_path / "killed"
    words = [f"amp={level}", "accumulate=2", *job.words]
    succeed([*words, f"run={reference}"], ranks=2, program=job.program)
    again = [*words, f"run={killed}"]
    at = str(random.SystemRandom().randint(1, 24))  # two backwards a step
    assert run(again, 2, SUICIDAL, RECIPE=job.recipe, KILL_AT_BACKWARD=at, KILL_RANK="1").returncode != 0
    process = start(again, ranks=2, program=job.program)
    deadline = time.monotonic() + 120
    while max((killed / "checkpoints").glob("step-*"), default=Path()).name < "step-000000015":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    succeed(again, ranks=2, program=job.program)
    assert [row["resumed_from"] for row in rows(killed) if row.get("event") == "start"][-1] >= 15
    assert_same_end(killed, reference)


def test_killed_before_the_first_checkpoint_it_starts_again(tmp_path, words):
    job = ["amp=o2", *words, "steps=4", f"run={tmp_path}"]
    assert run(job, program=SUICIDAL, KILL_AT_BACKWARD="3").returncode == -signal.SIGKILL
    assert "resumed" not in succeed(job)
    assert [row["step"] for row in steps(tmp_path)] == [1, 2, 3, 4]


def test_a_finished_run_resumes_with_more_epochs_bit_by_bit_and_as_no_other_job(tmp_path, words, capsys):
    reference, again = tmp_path / "reference", tmp_path / "again"
    job = ["amp=o2", *words]
    assert train(reference, *job, "epochs=3") == loop.DONE
    assert train(again, *job, "epochs=1") == loop.DONE
    assert result(again)["steps"] == 8
    assert train(again, *job, "epochs=3") == loop.DONE
    assert_same_end(again, reference)
    assert result(again)["resumed_from"] == 8
    before = result(again)
    (again / "result.json").unlink()
    assert train(again, *job, "epochs=3") == loop.DONE  # which only writes the result again
    for key in ("loss", "eval", "observed", "throughput", "steps", "updates", "status"):
        assert result(again)[key] == before[key]
    assert_same_end(again, reference)
    capsys.readouterr()
    for word in ("seed=1", "train.rho=0.5"):
        assert train(again, *job, "epochs=3", word) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert word in line
    assert train(again, *job, "epochs=2") == 2
    assert "has done 24 steps, and this asks for 16 in all" in capsys.readouterr().err
