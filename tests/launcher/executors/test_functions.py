"""Any Python function through our executors, as submitit's users know it."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
import submitit
from submitit.core.utils import FailedJobError

from amp_launcher.job import function
from launcher.__main__ import main
from launcher.errors import LauncherError, UsageError
from launcher.executors.base import PlanExecutor
from launcher.executors.functions import FunctionJob
from launcher.executors.local.executor import LocalExecutor
from launcher.executors.slurm.executor import SlurmExecutor
from launcher.executors.ssh.executor import SshExecutor
from launcher.runs import selection, store
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord, Provenance, ResultRecord, Status, Submission
from tests.launcher import warm
from tests.launcher.run_folders import until
from tests.testbed.facts import Testbed


def scaled(value: float, lr: float = 1.0) -> dict[str, float]:
    print(f"lr is {lr}")
    if value < 0:
        raise ValueError("no value below zero")
    return {"scaled": value * lr}


def process_and_job() -> tuple[int, tuple[str, int, int, int]]:
    known = submitit.JobEnvironment()
    return os.getpid(), (known.job_id, known.num_tasks, known.global_rank, known.local_rank)


def cpus() -> str | None:
    return os.environ.get("SLURM_CPUS_PER_TASK")


def trains_in_tasks() -> tuple[int, float]:
    """As a script that trains on several GPUs under submitit begins: the rank, and its weight after one step."""
    import torch

    where = submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    torch.distributed.init_process_group("gloo")
    torch.nn.init.ones_((model := torch.nn.Linear(1, 1, bias=False)).weight)
    optimizer = torch.optim.SGD((parallel := torch.nn.parallel.DistributedDataParallel(model)).parameters(), lr=0.5)
    parallel(torch.full((1, 1), 2.0 * where.rank)).sum().backward()
    optimizer.step()
    return where.rank, model.weight.item()


def fails_in_task(number: int) -> None:
    if submitit.JobEnvironment().global_rank == number:
        raise ValueError("no value in this task")
    time.sleep(600)


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.testbed)])
def executor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanExecutor]:
    monkeypatch.chdir(Path(__file__).parents[3])  # this module is found from there
    words = ["telemetry.every=0", "gpus=0"]
    if request.param == "local":
        yield LocalExecutor(tmp_path / "runs", words)
        return
    for name, value in request.getfixturevalue("testbed").environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", "0.5")
    yield SlurmExecutor(tmp_path / "runs", words)


def test_a_function_finds_modules_where_the_process_that_submits_it_does(
    executor: PlanExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_program.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_program  # type: ignore[import-not-found]

    assert executor.submit(beside_the_program.answer).result() == 42


def test_a_function_gives_what_it_returns_and_prints(executor: PlanExecutor) -> None:
    with executor.batch():
        jobs = [executor.submit(scaled, value, lr=0.1) for value in (1.0, -1.0)]
        local = executor.submit(process_and_job)
    assert jobs[0].result() == {"scaled": 0.1}
    assert jobs[0].stdout() == "lr is 0.1\n"
    with pytest.raises(FailedJobError, match="no value below zero"):
        jobs[1].result()
    assert jobs[1].state == "FAILED" and "no value below zero" in (jobs[1].stderr() or "")
    process, job = local.result()
    assert process != os.getpid() and job == (local.job_id, 1, 0, 0)
    called = jobs[0].submission()
    assert (called.function, called.args, called.kwargs) == (scaled, (1.0,), {"lr": 0.1})
    folder = jobs[0].run_dir
    for name in (function.CALL, function.RESULT):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert selection.newest([str(folder.parent)], 1)[0].id == local.run_id
    for record in (Status, Submission, PlanRecord, Provenance):
        values = store.read_or_empty(folder / f"{record.__name__.removesuffix('Record').lower()}.json")
        assert values and decode(record, values)[1] == [], record


def test_a_function_runs_in_as_many_processes_as_tasks_and_gives_the_result_of_each(executor: PlanExecutor) -> None:
    nodes, each = (2, {"cpus_per_task": 1}) if executor.kind == "slurm" else (1, {})
    executor.update_parameters(nodes=nodes, tasks_per_node=2, **each)
    with executor.batch():
        job, failed = executor.submit(process_and_job), executor.submit(fails_in_task, 1)
        of_each = executor.submit(cpus)
    processes, known = zip(*job.results(), strict=True)
    assert len(set(processes)) == job.num_tasks == 2 * nodes
    assert list(known) == [(job.job_id, 2 * nodes, task, task % 2) for task in range(2 * nodes)]
    assert job.task(1).result() == FunctionJob(job.run_dir).results()[1] == (processes[1], known[1])
    with pytest.raises(FailedJobError, match="\nValueError: no value in this task\n"):
        failed.results()
    assert failed.get_info()["Reason"] == "failed: ValueError: no value in this task"
    assert of_each.results() == ["1" if each else None] * 2 * nodes


def test_its_tasks_meet_as_those_of_submitit_do_and_a_mode_is_proved_on_all(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path / "runs", ["telemetry.every=0", "gpus=0", "amp=o1"])
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(trains_in_tasks)
    assert job.results() == [(0, 0.5), (1, 0.5)]
    observed = store.read(ResultRecord, job.run_dir / "result.json").observed
    assert observed.verdict == "proved" and "at step 1 on 2 ranks" in (observed.why or "")


def test_an_error_is_shown_from_the_function_on_with_the_run_and_its_logs(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path / "runs", ["telemetry.every=0"])

    def counted() -> Iterator[int]:
        yield 1

    with executor.batch():
        jobs = [executor.submit(scaled, -1.0), executor.submit(scaled), executor.submit(counted)]
    raised, uncallable, unpicklable = (str(job.exception()) for job in jobs)
    assert raised.splitlines()[1].startswith(f'  File "{__file__}"') and "\nValueError: no value below zero\n" in raised
    assert uncallable.startswith("TypeError: scaled() missing 1 required positional argument: 'value'\n")
    assert unpicklable.startswith("counted returned a value of type generator, which can't be pickled: TypeError: ")
    for job in jobs:
        assert str(job.exception()).endswith(f"\nrun {job.run_id} failed (logs in {job.run_dir}/attempts)")
    assert jobs[0].get_info()["Reason"] == "failed: ValueError: no value below zero"
    assert jobs[2].get_info()["Reason"].startswith("failed: counted returned a value of type generator, which")
    with pytest.raises(FailedJobError, match="is failed: SystemExit: no data "):
        executor.submit(sys.exit, "no data").result()


TRAINS = """\
import torch

def train(steps):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()
    return model.weight.dtype
"""


def test_a_mode_is_applied_around_a_function_and_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trains.py").write_text(TRAINS)
    monkeypatch.syspath_prepend(tmp_path)
    import trains  # type: ignore[import-not-found]

    words = ["telemetry.every=0", "amp=o1", f"python={warm.python()}"]
    job = LocalExecutor(tmp_path / "runs", words).submit(trains.train, 3)
    assert str(job.result()) == "torch.float32"
    result = store.read(ResultRecord, job.run_dir / "result.json")
    assert (result.observed.verdict, result.mechanism) == ("proved", "autocast_around")
    with pytest.raises(UsageError, match="amp=o2 casts the model"):
        LocalExecutor(tmp_path / "runs", ["amp=o2"]).submit(trains.train, 3)


@pytest.mark.testbed
@pytest.mark.parametrize("runtime", ["docker", "apptainer"])
def test_a_function_runs_in_a_container_which_finds_its_modules(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    for name, value in testbed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    image = testbed.images["python"].docker if runtime == "docker" else testbed.images["python"].sif
    words = ["telemetry.every=0", f"container={runtime}", f"image={image}", "container.limits=null"]
    executor = LocalExecutor(tmp_path / "runs", words)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(FailedJobError, match="needs cloudpickle where it runs, and /usr/bin/python3 has none"):
        executor.submit(os.getcwd).result()
    (tmp_path / "libraries").mkdir()
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "libraries/cloudpickle")
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    assert executor.submit(lambda: (os.getcwd(), sys.executable)).result() == (
        str(tmp_path / "here"),
        "/usr/bin/python3",
    )


def test_another_version_of_python_is_named_and_loads_nothing() -> None:
    _, reason = function.outcome_of("train", pickle.dumps(("3.9", [], b"no pickle")))
    assert reason.startswith("a function needs Python 3.9, which submitted it, and ")


def test_what_is_no_function_is_refused_with_what_to_write(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path / "runs")
    with pytest.raises(TypeError, match=r"not a value of type dict: say submit\(function, \*arguments\)"):
        executor.submit(scaled(1.0))  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(TypeError, match=r"not a value of type Plan: say submit\(execute, plan\)"):
        executor.submit(executor.plan("device=cpu"))  # type: ignore[arg-type] # and this one
    assert not selection.run_names(str(tmp_path / "runs"))


def done(tmp_path: Path) -> FunctionJob:
    job = LocalExecutor(tmp_path / "runs", ["telemetry.every=0"]).submit(max, 1, 2)
    assert job.result() == 2
    return job


def fails_at_first(marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        raise ValueError("the first time")
    return "again"


def test_a_resumed_function_is_the_one_of_its_run(tmp_path: Path) -> None:
    job = LocalExecutor(tmp_path / "runs", ["telemetry.every=0"]).submit(fails_at_first, tmp_path / "marker")
    job.wait()
    assert job.state == "FAILED"
    assert main(["resume", job.run_id, f"run_root={tmp_path / 'runs'}"]) == 0
    assert (job.run_dir / "attempts" / "2" / "plan.json").exists()
    assert FunctionJob(str(job.run_dir)).result() == "again"


class Counted(submitit.helpers.Checkpointable):  # type: ignore[misc] # untyped
    """How often it was called."""

    calls = 0

    def __call__(self, until: int) -> int:
        self.calls += 1
        print(f"call {self.calls}", flush=True)
        if self.calls < until:
            time.sleep(600)
        return self.calls


def test_what_submitit_can_checkpoint_is_saved_when_it_is_stopped_and_resumed(tmp_path: Path) -> None:
    words = ["telemetry.every=0", "gpus=0"]
    assert LocalExecutor(tmp_path / "runs", [*words, "script.stop_signal=null"]).submit(Counted(), 1).result() == 1
    executor = LocalExecutor(tmp_path / "runs", words)
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(Counted(), 2)
    until(lambda: (job.stdout() or "").count("call 1") == 2)
    job.cancel()
    saved = job.run_dir / "checkpoints" / function.SAVED
    assert job.state == "CANCELLED" and stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert main(["resume", job.run_id, f"run_root={tmp_path / 'runs'}"]) == 0
    assert FunctionJob(job.run_dir).results() == [2, 2]


@pytest.mark.parametrize("folder", ["/runs/otter", "/attempts/20260101-000000-otter", "/attempts/1/runs/otter"])
def test_a_run_folder_is_found_by_the_plan_of_any_attempt(folder: str) -> None:
    assert function.run_folder(f"{folder}/plan.json") == folder
    assert function.run_folder(f"{folder}/attempts/12/plan.json") == folder


def test_a_pickle_that_is_not_the_one_submitted_is_not_loaded(tmp_path: Path) -> None:
    job = done(tmp_path)
    again = [sys.executable, function.__file__, "max", "0" * 64]
    environment = {**os.environ, "LAUNCHER_SPEC": str(job.run_dir / "plan.json")}
    ended = subprocess.run(again, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1 and "is not what was submitted, so it is not loaded" in ended.stderr
    call = (job.run_dir / function.CALL).read_bytes()
    function.write_own(str(job.run_dir / function.CALL), cloudpickle.dumps((max, (3, 4), {})))
    with pytest.raises(LauncherError, match="is not what was submitted, so it is not loaded"):
        FunctionJob(job.run_dir).submission()
    function.write_own(str(job.run_dir / function.CALL), call)
    assert FunctionJob(job.run_dir).submission().args == (1, 2)
    (job.run_dir / function.CALL).chmod(0o640)
    ended = subprocess.run(again, env=environment, capture_output=True, text=True)
    assert "is not a file of yours alone" in ended.stderr


def test_a_result_that_another_user_may_have_written_is_not_read(tmp_path: Path) -> None:
    job = done(tmp_path)
    (job.run_dir / function.RESULT).chmod(0o620)
    with pytest.raises(LauncherError, match="is not a file of yours alone"):
        FunctionJob(job.run_dir).result()
    (job.run_dir / function.RESULT).chmod(0o600)
    os.chown(job.run_dir / function.RESULT, 1, 1)
    with pytest.raises(LauncherError, match="is not a file of yours alone"):
        FunctionJob(job.run_dir).result()
    os.chown(job.run_dir, 1, 1)
    with pytest.raises(LauncherError, match="another user"):
        FunctionJob(job.run_dir)._get_outcome_and_result()


def test_a_result_is_of_a_run_that_is_done_and_of_its_last_attempt(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path / "runs", ["telemetry.every=0"])
    with pytest.raises(
        FailedJobError, match=r"is done, but its function did not return: the process ended first, .*/attempts\)"
    ):
        executor.submit(sys.exit, 0).result()
    job = executor.submit(sys.exit, 3)
    job.wait()
    function.write_own(str(job.run_dir / function.RESULT), cloudpickle.dumps(("success", "of an attempt before")))
    with pytest.raises(FailedJobError, match="exit code 3"):
        job.result()


def test_calls_that_do_not_fit_on_the_disk_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = function.write_own, []

    def full(path: str, content: bytes) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        written.append(path)
        write(path, content)

    monkeypatch.setattr(function, "write_own", full)
    root = tmp_path / "runs"
    executor = LocalExecutor(root, ["telemetry.every=0"])
    with pytest.raises(UsageError, match=r"No space left on device: .*function\.pkl"), executor.batch():
        executor.submit(max, 1, 2)
        executor.submit(max, 3, 4)
    assert written and not selection.run_names(str(root))


def test_a_place_that_cannot_run_a_function_is_refused_and_nothing_is_queued(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    root = tmp_path / "runs"
    with pytest.raises(UsageError, match=r"needs Python 3\.\d+, .* this one says '3.9'"):
        LocalExecutor(root, [f"python={other}"]).submit(max, 1, 2)
    with pytest.raises(UsageError, match="can't be pickled"):
        LocalExecutor(root).submit(max, (letter for letter in "ab"))
    with pytest.raises(UsageError, match="runs on this machine"):
        SshExecutor("me@nowhere.invalid").submit(max, 1, 2)
    assert not selection.run_names(str(root))
