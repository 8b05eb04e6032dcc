"""Faults of Slurm's own servers at random moments; other faults are in test_faults.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher import bash_files
from launcher.errors import Unavailable
from launcher.executors.slurm import jobs, submit
from launcher.probe.slurm_commands import call
from launcher.runs import selection, store
from launcher.runs.states import SILENT
from tests import patience
from tests.launcher.slurm.bench import Bench, ended, job_of, state, until
from tests.launcher.slurm.trainers import (
    EVERY,
    LONG,
    Moments,
    Trainers,
    folders_of,
    gone,
    launch,
    output_of,
    processes,
    saved,
    shell,
    submitting,
)
from tests.testbed.facts import Testbed


@pytest.fixture
def trainers(slurm: Testbed, tmp_path: Path, plain_undisturbed: Path) -> Iterator[Trainers]:
    with submitting(Trainers(tmp_path, plain_undisturbed, plain=True)) as trainers:
        yield trainers


@pytest.fixture
def cluster(slurm: Testbed) -> Iterator[Testbed]:
    """The testbed, whose daemons a test may kill."""
    yield slurm
    slurm.revive()
    pass_forgotten_ids()


def pass_forgotten_ids() -> None:
    """Have no later test's job get an id that a killed controller had given and forgot: a node that remembers the first
    job of that id refuses the second one and is drained. A job that is held takes an id and touches no node."""
    jobs = [call(["sbatch", "--parsable", "--hold", "--wrap=true"]).stdout.strip() for _ in range(10)]
    assert all(jobs), jobs
    assert call(["scancel", *jobs]).returncode == 0


@pytest.mark.alone
def test_a_restarted_node_daemon_disturbs_no_run(trainers: Trainers, moments: Moments, cluster: Testbed) -> None:
    folders = [trainers.start(trainers.plan(pace=0.4)) for _ in range(2)]
    # A launch that is under way to a node whose daemon dies is lost, and Slurm 22.05 shows the job as running for ever.
    until(lambda: all((folder / "attempts/1").exists() for folder in folders), LONG)
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
    # Its first attempt isn't done before Slurm starts the second one.
    folder = trainers.start(trainers.plan("cluster.nodelist=n1", "restart.max=1", pace=4.0))
    saved(folder, EVERY)
    first, before = processes(folder), shell(folder)
    cluster.kill("slurmd-n1")
    moments.wait(3)
    assert call(["scontrol", "update", "nodename=n1", "state=down", "reason=fault"]).returncode == 0
    assert not gone(first), "the trainer outlives its node's daemon"
    words = call(["bash", "-c", f"{bash_files.text('launcher.script', 'slurm.sh')}\nfailed_node 'n[1-2]'"]).stdout
    assert words == "its node n1 failed\n"  # of a job on both
    call(["scontrol", "update", f"jobid={job_of(folder)}", "ReqNodeList=n2"])
    until(lambda: "begin time" in state(folder).reason, LONG)
    until((folder / "attempts/2").exists, LONG)
    until(lambda: gone([*first, before]), LONG)
    assert "attempts/2 has taken over" in (folder / "attempts/1/stderr.log").read_text()
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2
    assert store.read_or_empty(folder / "attempts/1" / store.ENDED)["reason"] == "its node n1 failed"
    assert [len(path.read_text().split()) for path in folder.glob("attempts/*/restarted")] == [2]  # it counts


def end_controller(cluster: Testbed, moments: Moments) -> None:
    """By TERM, as for an upgrade, or by KILL: then it forgets what happened in its last seconds."""
    if moments.random.random() < 0.5:
        cluster.kill("slurmctld")
        return
    pid = cluster.servers["slurmctld"]
    cluster.kill("slurmctld", signal.SIGTERM)
    until(lambda: pid is None or gone([pid]), LONG)


def ends_truly(trainers: Trainers, folder: Path) -> None:
    """The run is done, as if nothing had happened; or a controller that crashed forgot it, and it says so."""

    def over() -> bool:
        last = state(folder)
        if "scontrol release" in last.reason:  # its job had an id that the node knew from before the crash
            call(["scontrol", "release", job_of(folder)])
        return last.finished

    until(over, LONG)
    for _ in range(3):
        name, reason = state(folder)[:2]
        if name == "done":
            break
        # The controller had not yet saved that the run was submitted, or that it had started, and ends it; or it gives
        # the id of a job that it forgot to another, which a node that remembers refuses.
        assert (name == "failed" and reason.startswith(("its script was killed", SILENT))) or (
            name == "lost" and "Slurm no longer knows job" in reason
        ), output_of(folder)
        until(lambda: not processes(folder), LONG)
        trainers.go_on(folder)
        until(over, LONG)
    trainers.ends_as_if_undisturbed(folder)


@pytest.mark.alone
def test_a_restarted_controller_disturbs_no_run_and_takes_a_submission_meanwhile_once_or_not_at_all(
    trainers: Trainers, moments: Moments, cluster: Testbed
) -> None:
    folders = [trainers.start(trainers.plan(pace=0.5)) for _ in range(2)]
    until(lambda: all((folder / "attempts/1").exists() for folder in folders), LONG)
    begun, saved_at = time.time(), Path(cluster.folder, "slurm/state/job_state").stat
    # A controller that is killed forgets what it has not saved, which it does in five seconds of a quiet machine.
    until(lambda: saved_at().st_mtime > begun or time.time() > begun + patience.scaled(6), LONG)
    for _ in range(moments.rounds):
        before = folders_of(trainers)
        started = launch(trainers, cluster)
        moments.wait(3)
        end_controller(cluster, moments)
        assert {state(folder).name for folder in folders} <= {"running", "done", "unreachable"}
        moments.wait(3)
        cluster.revive()
        out, err = started.communicate()
        made = folders_of(trainers) - before
        if started.returncode == 0:
            assert {folder.name for folder in made} == {*out.split()}
            for folder in made:
                trainers.jobs.add(job_of(folder))
                ends_truly(trainers, folder)
        else:
            assert started.returncode in (2, 3), (out, err)  # Slurm refuses what it has no node for yet
            assert not made or "not known whether Slurm accepted" in err, (out, err)
    for folder in folders:
        trainers.ends_as_if_undisturbed(folder)


@pytest.mark.alone
def test_a_run_whose_slurmstepd_was_killed_leaves_no_job_running(bench: Bench, slurm: Testbed) -> None:
    go = bench.root.parent / "go"
    (folder,) = bench.submit(bench.plan(f"[time.sleep(0.1) for _ in iter(lambda: os.path.exists({str(go)!r}), True)]"))
    until(lambda: state(folder).name == "running")
    step = int(Path(f"/proc/{shell(folder)}/stat").read_text().rpartition(")")[2].split()[1])
    assert Path(f"/proc/{step}/exe").readlink().name.startswith("slurmstepd")
    os.kill(step, signal.SIGKILL)
    until(lambda: gone([step]))
    go.touch()
    assert ended(folder).name == "done"
    # Slurm itself would call it failed much later, with its node, and start it again.
    until(lambda: jobs.listed(None)[job_of(folder)].state in ("CANCELLED", "NODE_FAIL"))
    assert jobs.listed(None)[job_of(folder)].state == "CANCELLED"


@pytest.mark.alone
def test_a_job_that_a_stalled_controller_accepts_later_keeps_its_run(
    bench: Bench, cluster: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sbatch = bench.plan(), submit.sbatch

    def stalled(argv: Sequence[str], answer: Path) -> str:
        cluster.kill("slurmctld", signal.SIGSTOP)
        return sbatch(argv, answer)

    monkeypatch.setattr(submit, "sbatch", stalled)
    try:
        with pytest.raises(Unavailable, match="not known whether Slurm accepted the job"):
            bench.submit(plan)
    finally:
        cluster.kill("slurmctld", signal.SIGCONT)
    (name,) = selection.run_names(str(bench.root))
    assert ended(bench.root / name, LONG).name == "done"
