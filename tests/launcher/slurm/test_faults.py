"""Faults on the real Slurm at random moments, with a trainer that has plain numbers for weights.

After each of them the run ends bit by bit as one that nothing happened to, or its state says truly what became of it;
nothing is submitted twice, and nothing is lost. FAULT_ROUNDS says how often each is tried, FAULT_SEED which moments;
`make faults` tries many.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.code.job_files import code_files
from launcher.executors import execute, stopping
from launcher.probe.slurm_commands import call
from launcher.runs import selection, store
from launcher.runs.states import SILENT
from launcher.runs.store import Run
from tests.launcher.slurm.bench import Bench, ended, job_of, state, until
from tests.launcher.slurm.trainers import (
    EVERY,
    JOB,
    LONG,
    STEPS,
    Moments,
    Trainers,
    gone,
    kill,
    processes,
    saved,
    shell,
    side_by_side,
    submissions,
    submitting,
    told,
    undisturbed,
)
from tests.recipes.torch_.trainers import result, rows
from tests.testbed.facts import Testbed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "run", plain=True)


def test_the_plain_trainer_is_done_and_proved(whole: Path) -> None:
    """Without the testbed: what it uses of the recipes is there."""
    found = result(whole)
    assert (found["status"], found["steps"], found["observed"]["verdict"]) == ("done", STEPS, "proved")


@pytest.fixture
def trainers(slurm: Testbed, tmp_path: Path, whole: Path) -> Iterator[Trainers]:
    with submitting(Trainers(tmp_path, whole, plain=True)) as found:
        yield found


@pytest.fixture
def cluster(slurm: Testbed) -> Iterator[Testbed]:
    """The testbed, whose daemons a test may kill."""
    yield slurm
    slurm.revive()
    pass_forgotten_ids()


def pass_forgotten_ids() -> None:
    """Have no later test's job get an id that a killed controller had given and forgot: a node that remembers the first
    job of that id refuses the second one and is drained. A job that is held takes an id and touches no node."""
    taken = [call(["sbatch", "--parsable", "--hold", "--wrap=true"]).stdout.strip() for _ in range(10)]
    assert all(taken), taken
    assert call(["scancel", *taken]).returncode == 0


def test_a_trainer_killed_at_any_moment_fails_with_the_reason_and_can_be_resumed(
    trainers: Trainers, moments: Moments
) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        saved(folder, moments.step())
        moments.wait(0.5)
        kill(processes(folder))
        assert ended(folder, LONG)[:2] == ("failed", "the trainer was killed by signal 9"), told(folder)
        trainers.go_on(folder)
        trainers.ends_as_if_undisturbed(folder)
        assert state(folder).attempt == 2

    side_by_side(moments.rounds, one)


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
    folder = trainers.start(trainers.plan(*place, pace=0.8))
    saved(folder, EVERY)
    wants = ["--parsable", "--partition=priority", "--mem=35G", "--nodelist=n1", "--output=/dev/null"]
    trainers.jobs.add(call(["sbatch", *wants, "--wrap=sleep 1"]).stdout.strip())
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2


def test_requeued_in_the_middle_of_a_checkpoint_it_goes_on_from_the_one_before(
    trainers: Trainers, moments: Moments
) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan(pace=0.05, save=1.0))
        least = moments.step()
        saved(folder, least)
        until(lambda: list(folder.glob("checkpoints/.step-*")), LONG, every=0.01)
        moments.wait(0.9)
        assert call(["scontrol", "requeue", job_of(folder)]).returncode == 0
        trainers.ends_as_if_undisturbed(folder)
        assert not list(folder.glob("checkpoints/.*"))

    side_by_side(moments.rounds, one)


@pytest.mark.alone
def test_a_restarted_node_daemon_disturbs_no_run(trainers: Trainers, moments: Moments, cluster: Testbed) -> None:
    folders = [trainers.start(trainers.plan(pace=0.4)) for _ in range(2)]
    # A launch that is under way to a node whose daemon dies is lost, and Slurm 22.05 shows the job as running for ever.
    until(lambda: all((each / "attempts/1").exists() for each in folders), LONG)
    for _ in range(moments.rounds):
        moments.wait(4)
        cluster.kill(f"slurmd-{moments.random.choice(cluster.slurm.nodes)}")
        moments.wait(1)
        cluster.revive()
    for folder in folders:
        trainers.ends_as_if_undisturbed(folder)


@pytest.mark.alone
def test_a_run_started_again_elsewhere_while_its_node_is_out_of_sight_has_one_writer(
    trainers: Trainers, moments: Moments, cluster: Testbed
) -> None:
    folder = trainers.start(trainers.plan("cluster.flags=['--nodelist=n1']", pace=1.5))
    saved(folder, EVERY)
    first, before = processes(folder), shell(folder)
    cluster.kill("slurmd-n1")
    moments.wait(3)
    assert call(["scontrol", "update", "nodename=n1", "state=down", "reason=fault"]).returncode == 0
    assert not gone(first), "the trainer outlives its node's daemon"
    call(["scontrol", "update", f"jobid={job_of(folder)}", "ReqNodeList=n2"])
    until(lambda: "begin time" in state(folder).reason, LONG)
    until((folder / "attempts/2").exists, LONG)
    until(lambda: gone([*first, before]), LONG)
    assert "attempts/2 has taken over" in (folder / "attempts/1/stderr.log").read_text()
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2


def end_controller(cluster: Testbed, moments: Moments) -> None:
    """By TERM, as for an upgrade, or by KILL: then it forgets what happened in its last seconds."""
    if moments.random.random() < 0.5:
        cluster.kill("slurmctld")
        return
    pid = cluster.servers["slurmctld"]
    cluster.kill("slurmctld", signal.SIGTERM)
    until(lambda: pid is None or gone([pid]), LONG)


@pytest.mark.alone
def test_a_restarted_controller_disturbs_no_run(trainers: Trainers, moments: Moments, cluster: Testbed) -> None:
    folders = [trainers.start(trainers.plan(pace=0.2)) for _ in range(2)]
    for _ in range(moments.rounds):
        moments.wait(4)
        end_controller(cluster, moments)
        assert {state(each).name for each in folders} <= {"running", "done", "unreachable"}
        moments.wait(3)
        cluster.revive()
    for folder in folders:
        trainers.ends_as_if_undisturbed(folder)


def launch(trainers: Trainers, slurm: Testbed) -> subprocess.Popen[str]:
    """The command as a person types it."""
    words = ["cluster=slurm", "gpus=0", *JOB, "env.OMP_NUM_THREADS=1"]
    where = [f"run_root={trainers.root}", f"python={trainers.python}"]
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words, *where],
        env=slurm.slurm_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folders_of(trainers: Trainers) -> set[Path]:
    return {each.folder for each in selection.newest([str(trainers.root)], 1000)}


def ends_truly(trainers: Trainers, folder: Path) -> None:
    """The run is done, as if nothing had happened; or a controller that crashed forgot it, and it says so."""

    def over() -> bool:
        found = state(folder)
        if "scontrol release" in found.reason:  # its job had an id that the node knew from before the crash
            call(["scontrol", "release", job_of(folder)])
        return found.finished

    until(over, LONG)
    for _ in range(3):
        name, reason = state(folder)[:2]
        if name == "done":
            break
        # The controller had not yet saved that the run was submitted, or that it had started, and ends it; or it gives
        # the id of a job that it forgot to another, which a node that remembers refuses.
        assert (name, reason) in (("failed", "its script was killed"), ("failed", SILENT)) or (
            name == "lost" and "Slurm no longer knows job" in reason
        ), told(folder)
        until(lambda: not processes(folder), LONG)
        trainers.go_on(folder)
        until(over, LONG)
    trainers.ends_as_if_undisturbed(folder)


@pytest.mark.alone
def test_a_controller_restarted_during_a_submission_takes_it_once_or_not_at_all(
    trainers: Trainers, moments: Moments, cluster: Testbed
) -> None:
    for _ in range(moments.rounds):
        before = folders_of(trainers)
        started = launch(trainers, cluster)
        moments.wait(3)
        end_controller(cluster, moments)
        moments.wait(3)
        cluster.revive()
        out, err = started.communicate(timeout=LONG)
        made = folders_of(trainers) - before
        if started.returncode == 0:
            assert {each.name for each in made} == {*out.split()}
            for folder in made:
                trainers.jobs.add(job_of(folder))
                ends_truly(trainers, folder)
        else:
            assert started.returncode in (2, 3), (out, err)  # Slurm refuses what it has no node for yet
            assert not made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 40 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=True)
    yield folder
    until(lambda: subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0, LONG)


def test_a_full_disk_fails_the_run_with_that_reason_and_with_room_again_it_goes_on(
    trainers: Trainers, moments: Moments, small_disk: Path
) -> None:
    folders = [trainers.start(trainers.plan(pace=0.6, root=small_disk / "runs")) for _ in range(2)]
    for folder in folders:
        saved(folder, EVERY)
    for number in range(moments.rounds // 2):
        moments.wait(2)
        with open(small_disk / f"filler{number}", "wb") as filler, pytest.raises(OSError, match="No space left"):
            while True:
                os.write(filler.fileno(), bytes(4096))
        os.truncate(filler.name, os.path.getsize(filler.name) - 2**18)  # room for the words, and for no checkpoint
        for folder in folders:
            found = ended(folder, LONG)
            assert found.name == "failed"
            assert "No space left on device" in found.reason, (found, told(folder))
        (small_disk / f"filler{number}").unlink()
        for folder in folders:
            trainers.go_on(folder)
    for folder in folders:
        trainers.ends_as_if_undisturbed(folder)


def test_a_run_whose_folder_is_deleted_is_lost_and_its_job_ends(trainers: Trainers, moments: Moments) -> None:
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
        assert not folder.exists()

    side_by_side(moments.rounds, one)


def test_a_run_cancelled_while_it_starts_is_cancelled_and_nothing_of_it_lives(
    trainers: Trainers, moments: Moments
) -> None:
    def one(number: int) -> None:
        folder = trainers.start(trainers.plan())
        moments.wait(4)
        ((_, why),) = stopping.cancel([Run(str(folder.parent), folder.name)], now=bool(number % 2), stop_grace=2)
        assert why == ""
        assert ended(folder, LONG).name == "cancelled", told(folder)
        until(lambda: not processes(folder), LONG)
        assert not (folder / "result.json").exists() or state(folder).reason.startswith("on request")

    side_by_side(2 * moments.rounds, one)


def test_a_launcher_killed_at_any_moment_leaves_a_complete_run_or_none(
    trainers: Trainers, moments: Moments, slurm: Testbed
) -> None:
    def one(number: int) -> None:
        started = launch(trainers, slurm)
        moments.wait(3)
        started.kill()
        started.communicate()

    side_by_side(2 * moments.rounds, one)
    for folder in folders_of(trainers):
        found = ended(folder, LONG)
        if found.name == "done":
            trainers.is_as_if_undisturbed(folder)
        else:
            assert found.name == "lost", (found, told(folder))
            assert "the launcher ended before" in found.reason
            assert store.attempts(folder) == []
            assert submissions(folder) == set()


# Stands in for sbatch on the PATH: the real one for everything but a submission, in which it and its launcher die.
DYING_SBATCH = """#!/bin/sh
case "$*" in *--test-only*) exec {sbatch} "$@" ;; esac
{submit}
kill -KILL $PPID $$
"""


@pytest.mark.parametrize("accepted", [True, False])
def test_an_sbatch_killed_before_it_answered_leaves_no_doubt_about_its_job(
    bench: Bench, slurm: Testbed, tmp_path: Path, accepted: bool
) -> None:
    folder = execute.prepare(bench.plan("time.sleep(3)"), code_files())
    sbatch = shutil.which("sbatch")
    (tmp_path / "fake").mkdir()
    text = DYING_SBATCH.format(sbatch=sbatch, submit=f'{sbatch} "$@" >/dev/null' if accepted else "")
    (tmp_path / "fake/sbatch").write_text(text)
    (tmp_path / "fake/sbatch").chmod(0o700)
    start = "from pathlib import Path; from launcher.executors.slurm.submit import start; "
    start += "from launcher.plan import record; from launcher.runs import store; "
    start += f"folder = Path({str(folder)!r}); plan = record.from_json(store.read_or_empty(folder / 'plan.json')); "
    start += "start([folder], [plan])"
    path = {"PATH": f"{tmp_path / 'fake'}:{os.environ['PATH']}"}
    died = subprocess.run([sys.executable, "-c", start], env=slurm.slurm_env(path))
    assert died.returncode == -signal.SIGKILL
    found = ended(folder, LONG)
    if accepted:
        assert found.name == "done"
        assert {job_of(folder)} == submissions(folder)
    else:
        assert found[:2] == ("lost", "it never started: its launcher ended before Slurm had accepted it")
