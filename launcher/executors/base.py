"""Our clusters as submitit executors: `executor.submit(execute, plan)` gives submitit's familiar jobs.

The payload is the plan's script, not a pickle, so nothing of this package has to be where the job runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core import core
from submitit.core.utils import DelayedSubmission, FailedJobError, JobPaths

from launcher.errors import LauncherError
from launcher.executors import backends, stopping
from launcher.executors import execute as executing
from launcher.executors.execute import execute
from launcher.executors.local import start as local_start
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.runs import store
from launcher.runs.store import Run

# submitit's own words for how a job stands, which its waiting understands.
_STATES = {
    "queued": "PENDING",
    "running": "RUNNING",
    "stopping": "RUNNING",
    "done": "COMPLETED",
    "stopped": "CANCELLED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
    "lost": "NODE_FAIL",
}


class RunWatcher(core.InfoWatcher):
    """Job states from run folders: nothing is asked of a scheduler but what `queues` asks for all of them at once."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode).get("State", "UNKNOWN")

    def update(self) -> None:
        self._num_calls += 1
        seen = backends.look([_run(Path(each)) for each in sorted(self._registered - self._finished)])
        for each in seen:
            folder = str(each.run.folder)
            self._info_dict[folder] = {"JobID": each.run.id, "State": _STATES.get(each.state.name, "UNKNOWN")}
        self._last_status_check = time.time()
        self._finished |= {str(each.run.folder) for each in seen if each.state.finished}


class RunJob(core.Job[dict[str, Any]]):
    """One run. Its result is the content of `result.json`."""

    watcher = RunWatcher(delay_s=1)

    def __init__(self, run_dir: Path) -> None:
        super().__init__(folder=run_dir, job_id=str(run_dir))
        self.run_dir = run_dir

    @property
    def run_id(self) -> str:
        return self.run_dir.name

    @property
    def paths(self) -> JobPaths:
        return _RunPaths(self.run_dir)

    def cancel(self, check: bool = True) -> None:
        ((_, why),) = stopping.cancel([_run(self.run_dir)])
        if check and why:
            raise LauncherError(f"{self.run_id} could not be cancelled: {why}")

    def done(self, force_check: bool = False) -> bool:
        return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        try:
            return "success", executing.outcome(self.run_dir)
        except LauncherError as error:
            return "error", str(error)

    def exception(self) -> FailedJobError | None:
        self.wait()
        outcome, text = self._get_outcome_and_result()
        return FailedJobError(text) if outcome == "error" else None


class _RunPaths(JobPaths):
    """submitit's names for the files of the newest attempt."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(folder=run_dir, job_id=run_dir.name)

    def _attempt(self) -> Path:
        return self.folder / "attempts" / str(max(store.attempts(self.folder), default=1))

    @property
    def stdout(self) -> Path:
        return self._attempt() / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self._attempt() / "stderr.log"


class ScriptExecutor(submitit.core.core.Executor):
    """What our executors share: they take `execute` and plans, and start scripts."""

    job_class = RunJob

    def __init__(self, folder: str | Path = ".", code: Mapping[str, Path] | None = None) -> None:
        super().__init__(folder)
        self.code = code

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[core.Job[Any]]:
        plans = [_plan(each) for each in delayed_submissions]
        folders = [executing.prepare(each, self.code) if each.run_id == PLACEHOLDER else None for each in plans]
        ready = [folder or Path(plan.run_dir) for folder, plan in zip(folders, plans, strict=True)]
        self.start(ready)
        return [self.job_class(each) for each in ready]

    def start(self, folders: Sequence[Path]) -> None:
        """Submit prepared run folders, as one sweep where there are several."""
        raise NotImplementedError


class DirectExecutor(ScriptExecutor):
    """This machine: a script starts now, in a session of its own that outlives the launcher. Several run in turn."""

    def start(self, folders: Sequence[Path]) -> None:
        local_start.start_here(folders)

    @classmethod
    def affinity(cls) -> int:
        return 0  # available everywhere, chosen only by name: submitit's own choice stays what it was


def _plan(submission: DelayedSubmission) -> Plan:
    if submission.function is not execute or len(submission.args) != 1 or submission.kwargs:
        raise TypeError("this executor runs plans: submit(launcher.executors.execute.execute, plan)")
    (plan,) = submission.args
    if not isinstance(plan, Plan):
        raise TypeError(f"execute takes a launcher.plan.resolve.Plan, not {type(plan).__name__}")
    return plan


def _run(folder: Path) -> Run:
    return Run(str(folder.parent), folder.name)
