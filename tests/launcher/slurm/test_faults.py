"""Faults on the real Slurm at random moments, with a trainer that has plain numbers for weights.

After each of them the run ends bit by bit as one that nothing happened to, or its state says truly what became of it;
nothing is submitted twice, and nothing is lost. FAULT_ROUNDS says how often each is tried, FAULT_SEED which moments;
`make faults` tries many. Faults of Slurm's own servers are in test_killed_servers.py.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.code.job_files import code_files
from launcher.executors import execute, stopping
from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.store import Run
from tests.amp_launcher.torch.trainers import result, rows
from tests.launcher.slurm.bench import Bench, cluster_of, ended, job_of, state, until
from tests.launcher.slurm.trainers import (
    EVERY,
    LONG,
    SEED,
    STEPS,
    Moments,
    Trainers,
    folders_of,
    kill,
    launch,
    output_of,
    processes,
    saved,
    shell,
    side_by_side,
    submissions,
    submitting,
)
from tests.launcher.stand_in import make_program
from tests.testbed.facts import Testbed

Story = Callable[..., None]
"""A test as a function, whose parameters are named as fixtures are."""


def test_the_plain_trainer_is_done_and_proved(plain_undisturbed: Path) -> None:
    """Without the testbed: what it uses of the recipes is there."""
    ended = result(plain_undisturbed)
    assert (ended["status"], ended["steps"], ended["observed"]["verdict"]) == ("done", STEPS, "proved")


def a_trainer_killed_at_any_moment_fails_with_the_reason_and_can_be_resumed(
    trainers: Trainers, moments: Moments
) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        saved(folder, moments.step())
        moments.wait(0.5)
        kill(processes(folder))
        assert ended(folder, LONG)[:2] == ("failed", "the trainer was killed by signal 9"), output_of(folder)
        trainers.go_on(folder)
        trainers.ends_as_if_undisturbed(folder)
        assert state(folder).attempt == 2

    side_by_side(moments.rounds, one)


def put_back_into_the_queue_at_any_moment_it_goes_on_from_its_last_checkpoint(
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
        # Until Slurm is asked again, an answer of between the kill and the requeue says truly that the job failed.
        until(lambda: state(folder).attempt == 2, LONG)
        trainers.ends_as_if_undisturbed(folder)
        assert state(folder).attempt == 2
        first, second = (row["resumed_from"] for row in rows(folder) if row.get("event") == "start")
        assert first is None
        assert second >= EVERY

    side_by_side(moments.rounds, one)


def preempted_it_goes_on_from_its_last_checkpoint_once_its_place_is_free(trainers: Trainers) -> None:
    place = ("cluster.partition=scavenge", "cluster.mem=35G", "cluster.nodelist=n1")
    folder = trainers.start(trainers.plan(*place, pace=2.0))  # its grace is over before it is done
    saved(folder, EVERY)
    wants = ["--parsable", "--partition=priority", "--mem=35G", "--nodelist=n1", "--output=/dev/null"]
    trainers.jobs.add(call(["sbatch", *wants, "--wrap=sleep 1"]).stdout.strip())
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2
    # By whom is told where one job alone is planned on its nodes; here others' jobs wait beside it.
    assert store.read_or_empty(folder / "attempts/1" / store.ENDED)["reason"].startswith("preempted")


def requeued_in_the_middle_of_a_checkpoint_it_goes_on_from_the_one_before(trainers: Trainers, moments: Moments) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan(pace=0.05, save=3.0))
        least = moments.step()
        saved(folder, least)
        until(lambda: list(folder.glob("checkpoints/.step-*")), LONG, every=0.01)
        moments.wait(0.9)
        assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
        trainers.ends_as_if_undisturbed(folder)
        assert not list(folder.glob("checkpoints/.*"))

    side_by_side(moments.rounds, one)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, of 40 MB."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        until(lambda: subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0, LONG)


def a_full_disk_fails_the_run_with_that_reason_and_with_room_again_it_goes_on(
    trainers: Trainers, moments: Moments
) -> None:
    with small_disk(trainers.root.parent / "disk") as disk:
        # Both in their first attempt until the disk is full, however far apart they were submitted.
        folders = [trainers.start(trainers.plan(pace=3.0, root=disk / "runs")) for _ in range(2)]
        for folder in folders:
            saved(folder, EVERY)
        for number in range(moments.rounds // 2):
            moments.wait(2)
            with open(disk / f"filler{number}", "wb") as filler, pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(filler.fileno(), bytes(4096))
            os.truncate(filler.name, os.path.getsize(filler.name) - 2**18)  # room for the words, and for no checkpoint
            for folder in folders:
                last = ended(folder, LONG)
                assert last.name == "failed"
                assert "No space left on device" in last.reason, (last, output_of(folder))
            (disk / f"filler{number}").unlink()
            for folder in folders:
                trainers.go_on(folder)
        for folder in folders:
            trainers.ends_as_if_undisturbed(folder)


def a_run_whose_folder_is_deleted_is_lost_and_its_job_ends(trainers: Trainers, moments: Moments) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        if number % 2:  # before it starts
            moments.wait(1)
        else:
            saved(folder, moments.step())
            moments.wait(0.5)
        job = job_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # what was written meanwhile
        until(lambda: job not in call(["squeue", "--noheader", "--format=%i"]).stdout.split(), LONG)
        assert processes(folder) == []
        assert state(folder)[:2] == ("lost", "its folder is gone")
        assert not folder.exists() or os.listdir(folder) == ["launch.log"]  # Slurm makes it anew from 23.02 on

    side_by_side(moments.rounds, one)


def a_run_cancelled_while_it_starts_is_cancelled_and_nothing_of_it_lives(trainers: Trainers, moments: Moments) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        moments.wait(4)
        ((_, why),) = stopping.cancel([Run(str(folder.parent), folder.name)], now=bool(number % 2), stop_grace=2)
        assert why == ""
        assert ended(folder, LONG).name == "cancelled", output_of(folder)
        until(lambda: not processes(folder), LONG)
        # One that starts while it is taken out of the queue gets Slurm's signal alone.
        assert not (folder / "result.json").exists() or state(folder).reason.startswith(("on request", "signal TERM"))

    side_by_side(2 * moments.rounds, one)


def a_launcher_killed_at_any_moment_leaves_a_complete_run_or_none(
    trainers: Trainers, moments: Moments, slurm: Testbed
) -> None:
    def one(number: int) -> None:
        started = launch(trainers, slurm)
        moments.wait(3)
        started.kill()
        started.communicate()

    side_by_side(2 * moments.rounds, one)
    for folder in folders_of(trainers):
        last = ended(folder, LONG)
        if last.name == "done":
            trainers.is_as_if_undisturbed(folder)
        else:
            assert last.name == "lost", (last, output_of(folder))
            assert "the launcher ended before" in last.reason
            assert store.attempts(folder) == []
            assert submissions(folder) == set()


# Stands in for sbatch on the PATH: the real one for everything but a submission, in which it and its launcher die.
DYING_SBATCH = """#!/bin/sh
case "$*" in *--test-only*) exec {sbatch} "$@" ;; esac
{submit}
kill -KILL $PPID $$
"""


START = """\
import json, pathlib, sys
from launcher.executors import submission
from launcher.plan import record
path = pathlib.Path(sys.argv[1])
submission.start([path.parent], [record.from_json(json.loads(path.read_text()))])
"""


def die_in_sbatch(bench: Bench, slurm: Testbed, submit: str) -> Path:
    """The folder of a run whose launcher and sbatch were killed; `submit` is what that sbatch did before."""
    folder = execute.prepare(bench.plan("time.sleep(3)"), code_files(), {"schema": 1})
    programs, sbatch = folder / "programs", shutil.which("sbatch")
    programs.mkdir()
    (programs / "sbatch").write_text(DYING_SBATCH.format(sbatch=sbatch, submit=submit.format(sbatch=sbatch)))
    (programs / "sbatch").chmod(0o700)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    died = subprocess.run([sys.executable, "-c", START, str(folder / "plan.json")], env=slurm.slurm_env(path))
    assert died.returncode == -signal.SIGKILL
    return folder


def an_sbatch_killed_before_it_answered_leaves_no_doubt_whether_its_job_was_accepted(
    bench: Bench, slurm: Testbed
) -> None:
    never = die_in_sbatch(bench, slurm, "")
    assert ended(never, LONG)[:2] == ("lost", "it never started: its launcher ended before Slurm had accepted it")
    accepted = die_in_sbatch(bench, slurm, '{sbatch} "$@" >/dev/null')
    assert ended(accepted, LONG).name == "done"
    assert {job_of(accepted)} == submissions(accepted)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, testbed: Testbed, tmp_path_factory: pytest.TempPathFactory, plain_undisturbed: Path
) -> Mapping[Story, Future[None]]:
    """How the selected stories ended. They mostly wait for Slurm, so that all run at the same time."""
    top = tmp_path_factory.mktemp("faults")
    tests = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    chosen = dict.fromkeys(test.callspec.params["story"] for test in tests if hasattr(test, "callspec"))

    def play(story: Story) -> None:
        own = top / story.__name__
        bench = Bench(own, make_program(own / "bin"))
        with submitting(Trainers(own, plain_undisturbed, plain=True)) as trainers:
            given = {"trainers": trainers, "moments": Moments(story.__name__), "slurm": testbed, "bench": bench}
            story(**{name: given[name] for name in inspect.signature(story).parameters})

    with cluster_of(testbed, top), ThreadPoolExecutor(len(chosen)) as pool:
        return {story: pool.submit(play, story) for story in chosen}


@pytest.mark.parametrize(
    "story",
    [
        a_trainer_killed_at_any_moment_fails_with_the_reason_and_can_be_resumed,
        put_back_into_the_queue_at_any_moment_it_goes_on_from_its_last_checkpoint,
        preempted_it_goes_on_from_its_last_checkpoint_once_its_place_is_free,
        requeued_in_the_middle_of_a_checkpoint_it_goes_on_from_the_one_before,
        a_full_disk_fails_the_run_with_that_reason_and_with_room_again_it_goes_on,
        a_run_whose_folder_is_deleted_is_lost_and_its_job_ends,
        a_run_cancelled_while_it_starts_is_cancelled_and_nothing_of_it_lives,
        a_launcher_killed_at_any_moment_leaves_a_complete_run_or_none,
        an_sbatch_killed_before_it_answered_leaves_no_doubt_whether_its_job_was_accepted,
    ],
    ids=lambda story: story.__name__,
)
def test_after_a_fault(outcomes: Mapping[Story, Future[None]], story: Story) -> None:
    print(f"FAULT_SEED={SEED}")
    outcomes[story].result()
