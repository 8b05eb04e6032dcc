"""The real trainer on the real Slurm: done and proved, stopped before its time limit, killed, requeued."""

from __future__ import annotations

from launcher.probe.slurm_commands import call
from launcher.runs import store
from tests.launcher.slurm.bench import job_of, state, until
from tests.launcher.slurm.trainers import (
    EVERY,
    LONG,
    STEPS,
    Moments,
    Trainers,
    ask_as_before_a_time_limit,
    kill,
    processes,
    saved,
    shell,
    side_by_side,
)
from tests.recipes.torch_.trainers import rows


def test_a_trainer_is_done_and_proved(trainers: Trainers) -> None:
    folder = trainers.start(trainers.plan(pace=0))
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 1


def test_before_its_time_limit_it_saves_and_goes_on_in_the_same_folder(trainers: Trainers, moments: Moments) -> None:
    folder = trainers.start(trainers.plan(pace=0.3))
    saved(folder, moments.step() // 2)
    ask_as_before_a_time_limit(folder)
    until(lambda: store.read_if_whole(folder / "status.json").get("state") == "requeued", LONG)
    until(lambda: "begin time" in state(folder).reason, LONG)
    marker = store.read_if_whole(folder / "attempts/1/stopped.json")
    assert 0 < marker["step"] < STEPS
    assert (folder / marker["checkpoint"] / "manifest.json").exists()
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2
    assert [row["resumed_from"] for row in rows(folder) if row.get("event") == "start"] == [None, marker["step"]]
    assert not (folder / "STOP").exists()


def test_put_back_into_the_queue_at_any_moment_it_goes_on_from_its_last_checkpoint(
    trainers: Trainers, moments: Moments
) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        saved(folder, moments.step())
        moments.wait(0.5)
        before = shell(folder)
        if number % 2:  # without any warning, as when a node loses its power
            kill([*processes(folder), before])
        assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
        trainers.ends_as_if_undisturbed(folder)
        assert state(folder).attempt == 2
        first, second = (row["resumed_from"] for row in rows(folder) if row.get("event") == "start")
        assert first is None
        assert second >= EVERY

    side_by_side(moments.rounds, one)


def test_preempted_it_goes_on_from_its_last_checkpoint_once_its_place_is_free(trainers: Trainers) -> None:
    place = ("cluster.partition=scavenge", "cluster.mem=35G", "cluster.flags=['--nodelist=n1']")
    folder = trainers.start(trainers.plan(*place, pace=1.0))
    saved(folder, EVERY)
    wants = ["--parsable", "--partition=priority", "--mem=35G", "--nodelist=n1", "--output=/dev/null"]
    trainers.jobs.add(call(["sbatch", *wants, "--wrap=sleep 1"]).stdout.strip())
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2
