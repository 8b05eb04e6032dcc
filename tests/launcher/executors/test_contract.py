"""What submitit's own tests hold of its executors, restated for ours, on each kind of cluster.

Of submitit's tests these do not apply, since the payload is a script and not a pickle (`test_functions.py` has those
that speak of functions):

- `test_requeuing`, `test_custom_checkpoint`, `Checkpointable`: run.sh requeues by itself (slurm/test_trainer.py).
- `test_max_pickle_size_gb`, `test_pickle_output_from_main`, `test_weird_dir` of pickles: there is no pickle of a plan.
- `test_get_first_task_error`, `num_tasks`, `task`: a run is one job with one task; ranks are torchrun's.
- `test_setup`, teardown: `cluster.setup` (config/test_setup_lines.py); a teardown would hide the exit code.
- `test_make_sbatch_string`, `test_read_info`, `test_watcher`, `test_read_job_id`: the script and the questions to Slurm
  are our own (slurm/test_text.py, slurm/test_shared.py).
- `RsyncSnapshot`, `TorchDistributedEnvironment`, `FunctionSequence`: code snapshots and the rendezvous are run.sh's.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import submitit
from submitit.core.core import DelayedJob
from submitit.core.utils import FailedJobError

from launcher.errors import UsageError
from launcher.executors import backends
from launcher.executors.base import PlanExecutor
from launcher.executors.execute import execute
from launcher.executors.local.executor import LocalExecutor
from launcher.executors.slurm.executor import SlurmExecutor
from launcher.executors.ssh.executor import SshExecutor
from launcher.plan.model import Plan
from launcher.runs import run_roots, selection
from launcher.runs.store import Run
from launcher.ssh import host
from tests.launcher.run_folders import end_all, until
from tests.launcher.slurm.bench import enter
from tests.launcher.ssh.trainer import PROGRAM
from tests.launcher.ssh.ways import configuration

TESTBED = pytest.mark.testbed
FAIL = "sys.exit(3)"
LONG = "steps, pause = 10_000, 0.05"


def here(tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder for runs, and the words of a stand-in for the trainer's Python."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PROGRAM)
    python.chmod(0o755)
    return tmp_path / "runs", [f"python={python}", "telemetry.every=0", "steps=3"]


@pytest.fixture(params=["local", *(pytest.param(name, marks=TESTBED) for name in ("slurm", "ssh", "login"))])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], PlanExecutor]]:
    """Makes executors for one place; what they started is ended."""
    if request.param == "local":
        folder, words = here(tmp_path)
        yield lambda: LocalExecutor(folder, words)
        end_all(folder)
        return
    testbed = request.getfixturevalue("testbed")
    enter(testbed, monkeypatch)
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", "0.5")
    if request.param == "slurm":
        folder, words = here(tmp_path)
        yield lambda: SlurmExecutor(folder, [*words, "gpus=0"])
    else:
        there = Path(testbed.shared, f"contract-{uuid.uuid4().hex[:8]}")
        there.mkdir(mode=0o755)
        folder, words = here(there)
        for path in (there, there / "bin"):
            os.chown(path, testbed.user.uid, testbed.user.gid)
        words += [f"cluster.ssh_config={configuration(tmp_path, testbed)}"]
        if request.param == "ssh":
            yield lambda: SshExecutor("box", folder, words)
        else:
            yield lambda: SlurmExecutor(folder, [*words, "gpus=0"], login="box")
        host.close_all()
    end_all(folder)
    shutil.rmtree(folder.parent / "runs", ignore_errors=True)


@pytest.fixture
def executor(make: Callable[[], PlanExecutor]) -> PlanExecutor:
    return make()


def plan_of(executor: PlanExecutor, behaviour: str = "") -> Plan:
    return executor.plan(f"env.BEHAVIOUR={behaviour}") if behaviour else executor.plan()


def test_a_job_is_submitits_with_a_result_a_state_and_logs(executor: PlanExecutor) -> None:
    plan = plan_of(executor, "print('to stderr', file=sys.stderr)")
    (job,) = executor.map_array(execute, [plan])
    assert isinstance(job, submitit.Job)
    assert job.result()["status"] == "done" and job.results() == [job.result()]
    assert (job.done(), job.state, job.exception()) == (True, "COMPLETED", None)
    assert job.stdout().splitlines()[-1] == "step 3"
    assert job.stderr() == "to stderr\n"
    assert (job.num_tasks, job.task(0)) == (1, job)
    assert job.submission().function is execute and job.submission().args[0].settings == plan.settings
    if executor.kind == "slurm" and not plan.cluster["login"]:
        assert re.fullmatch(r"\d+", job.job_id)
    restored = pickle.loads(pickle.dumps(job))
    assert restored.done() and restored.result() == job.result()
    assert asyncio.run(job.awaitable().result()) == job.result()


def test_a_batch_is_submitted_when_it_ends_as_one_sweep(executor: PlanExecutor) -> None:
    plans = [plan_of(executor) for _ in range(3)]
    with executor.batch():
        jobs = [executor.submit(execute, plan) for plan in plans]
        assert all(isinstance(job, DelayedJob) for job in jobs)
        with pytest.raises(AttributeError):
            _ = jobs[0].job_id
        with pytest.raises(RuntimeError):
            executor.update_parameters(name="other")
    names = [job.run_id for job in jobs]
    assert len({name.rpartition("-")[0] for name in names}) == 1
    assert sorted(names) == names
    done = list(submitit.helpers.as_completed(jobs, timeout=120, poll_frequency=0.2))
    assert sorted(job.run_id for job in done) == names
    assert [job.result()["status"] for job in jobs] == ["done"] * 3
    if executor.kind == "slurm" and not plans[0].cluster["login"]:
        array, _, _ = jobs[0].job_id.partition("_")
        assert [job.job_id for job in jobs] == [f"{array}_{index}" for index in range(3)]


def test_a_batch_may_be_submitted_by_the_first_look_and_one_that_failed_does_not_end_the_others(
    executor: PlanExecutor,
) -> None:
    with executor.batch(allow_implicit_submissions=True):
        failed, done = [executor.submit(execute, plan_of(executor, behaviour)) for behaviour in (FAIL, "")]
        with pytest.raises(FailedJobError, match="exit code 3"):
            failed.result()
    assert failed.state == "FAILED" and isinstance(failed.exception(), FailedJobError)
    assert done.exception() is None and done.result()["status"] == "done"


def test_a_cancelled_job_is_done_and_cancelled(executor: PlanExecutor) -> None:
    job = executor.submit(execute, plan_of(executor, LONG))
    until(lambda: job.state == "RUNNING" and "step 1" in (job.stdout() or ""))
    assert not job.done()
    job.cancel()
    assert job.done(force_check=True) and job.state == "CANCELLED"
    with pytest.raises(FailedJobError, match="cancelled"):
        job.result()


def test_a_job_may_be_cancelled_when_it_is_forgotten(executor: PlanExecutor) -> None:
    def started() -> Path:
        job = executor.submit(execute, plan_of(executor, LONG)).cancel_at_deletion()
        until(lambda: job.state == "RUNNING" and "step 1" in (job.stdout() or ""))
        return job.run_dir

    folder = started()
    (seen,) = backends.states_of([Run(str(folder.parent), folder.name)], fresh=True)
    assert seen.state.name in ("cancelled", "stopped")


def test_what_cannot_be_submitted_is_refused_and_leaves_nothing(executor: PlanExecutor) -> None:
    plan = plan_of(executor)
    with pytest.raises(ZeroDivisionError), executor.batch():
        executor.submit(execute, plan)
        _ = 1 / 0
    with pytest.raises(TypeError, match=r"takes a launcher\.plan\.model\.Plan, not str"):
        executor.submit(execute, "plan")
    other = SlurmExecutor() if executor.kind != "slurm" else LocalExecutor()
    with pytest.raises(UsageError, match=f"this plan is for cluster={executor.kind}"):
        other.submit(execute, plan)
    with pytest.raises(UsageError, match="these are 2 jobs"):
        executor.plan("batch=64,128")
    with pytest.raises(ValueError, match=r"cpus_per_gpu is not a parameter of .*\(.*gpus_per_node.* name"):
        executor.update_parameters(cpus_per_gpu=2)
    executor.update_parameters(timeout_min=5)
    assert executor.plan().cluster["time"] == "5"
    assert not selection.newest([plan.run_root, run_roots.remote()], 10)
    executor.update_parameters(name="renamed")
    assert executor.plan().name == "renamed"
