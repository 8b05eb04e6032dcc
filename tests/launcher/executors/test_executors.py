"""Plans through submitit: our executor, and submitit's own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import submitit

from launcher.executors.base import DirectExecutor
from launcher.executors.execute import execute
from launcher.plan.model import Plan
from launcher.runs import store
from tests.launcher.stand_in import lay

RESULT = "open(sys.argv[-1][4:] + '/result.json', 'w').write(json.dumps({'level': 'o2'}))"


def ready(tmp_path: Path, program: Path, behaviour: str = RESULT) -> tuple[Plan, Path]:
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": behaviour})
    return plan.bind(folder.name), folder


def test_execute_on_our_executor_gives_a_submitit_job_with_the_result(tmp_path: Path, program: Path) -> None:
    plan, folder = ready(tmp_path, program)
    job = DirectExecutor().submit(execute, plan)
    assert isinstance(job, submitit.Job)
    assert job.result() == {"level": "o2", "attempts": 1}
    assert (job.done(), job.state, job.exception()) == (True, "COMPLETED", None)
    assert job.stdout() == "to stdout\n"
    assert job.stderr() == "to stderr\n"
    assert job.paths.stdout == folder / "attempts" / "1" / "stdout.log"


@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_execute_on_submitits_own_executors_gives_the_result(
    tmp_path: Path, program: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = ready(tmp_path, program)
    executor = submitit.AutoExecutor(folder=tmp_path / "submitit", cluster=cluster)
    executor.update_parameters(timeout_min=1)
    assert executor.submit(execute, plan).result() == {"level": "o2", "attempts": 1}


def test_an_unbound_plan_gets_its_folder_when_it_is_submitted(tmp_path: Path, program: Path) -> None:
    plan, _ = lay(tmp_path, program, env={"BEHAVIOUR": RESULT})
    job = DirectExecutor().submit(execute, plan)
    assert job.result() == {"level": "o2", "attempts": 1}
    assert len(list((tmp_path / "runs").glob("2*"))) == 2


def test_a_failed_run_raises_with_its_reason(tmp_path: Path, program: Path) -> None:
    plan, _ = ready(tmp_path, program, "sys.exit(3)")
    job = DirectExecutor().submit(execute, plan)
    with pytest.raises(submitit.core.utils.FailedJobError, match="the trainer ended with exit code 3"):
        job.result()


def test_anything_but_execute_is_a_type_error(tmp_path: Path, program: Path) -> None:
    plan, _ = ready(tmp_path, program)
    with pytest.raises(TypeError, match="runs plans"):
        DirectExecutor().submit(print, plan)
    with pytest.raises(TypeError, match=r"takes a launcher\.plan\.resolve\.Plan"):
        DirectExecutor().submit(execute, "plan")


def test_a_batch_runs_its_cells_in_turn(tmp_path: Path, program: Path) -> None:
    plans = [ready(tmp_path, program, f"time.sleep(0.2); {RESULT}")[0] for _ in range(3)]
    executor = DirectExecutor()
    with executor.batch():
        jobs = [executor.submit(execute, plan) for plan in plans]
    assert [job.result() for job in jobs] == [{"level": "o2", "attempts": 1}] * 3
    spans = [json.loads((Path(plan.run_dir) / "status.json").read_text()) for plan in plans]
    assert all(before["ended"] <= after["started"] for before, after in itertools.pairwise(spans))


def test_one_failed_cell_does_not_end_the_others(tmp_path: Path, program: Path) -> None:
    plans = [ready(tmp_path, program, each)[0] for each in ("os.kill(os.getpid(), 9)", RESULT)]
    jobs = DirectExecutor().map_array(execute, plans)
    assert [job.exception() is None for job in jobs] == [False, True]


def test_cancel_ends_the_whole_session(tmp_path: Path, program: Path) -> None:
    plan, folder = ready(tmp_path, program, "import subprocess; subprocess.run(['sleep', '300'])")
    job = DirectExecutor().submit(execute, plan)
    _until(lambda: (tmp_path / "dump").exists())
    from launcher.executors import stopping

    stopping.kill(folder)
    assert job.done(force_check=True)
    assert job.state == "CANCELLED"


def test_a_run_outlives_the_launcher_that_started_it(tmp_path: Path, program: Path) -> None:
    _, folder = ready(tmp_path, program, f"time.sleep(1.5); {RESULT}")
    text = (
        "import sys, time; from pathlib import Path; from launcher.executors.base import DirectExecutor\n"
        "DirectExecutor().start([Path(sys.argv[1])]); print('started', flush=True); time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", text, str(folder)], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started\n"
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _until(lambda: (folder / "result.json").exists() and store.read_if_whole(folder / "status.json")["state"] == "done")


def test_the_private_names_of_submitit_that_we_stand_on_are_there() -> None:
    from submitit.core import core

    for name in ("_internal_process_submissions", "_submit_delayed_batch"):
        assert hasattr(core.Executor, name), name
    assert hasattr(core.Job, "_get_outcome_and_result")


def _until(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
