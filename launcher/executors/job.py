"""A run as a submitit job: its state from `backends`, its result and logs from its folder, here or on its host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core
from submitit.core.utils import DelayedSubmission, FailedJobError, JobPaths

from launcher.errors import LauncherError
from launcher.executors import backends, execute, logs, stopping
from launcher.executors.slurm.jobs import job_of
from launcher.plan import record
from launcher.runs import run_files, run_roots, store
from launcher.runs.store import Run

# submitit's names of states, which its waiting understands.
_STATES = {
    "queued": "PENDING",
    "running": "RUNNING",
    "suspended": "RUNNING",
    "stopping": "RUNNING",
    "done": "COMPLETED",
    "stopped": "CANCELLED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
    "lost": "NODE_FAIL",
}


class RunWatcher(core.InfoWatcher):
    """States of all jobs of this process by one look at their runs; `backends` limits what a scheduler is asked."""

    def __init__(self, delay_s: int) -> None:
        super().__init__(delay_s)
        self._folders: dict[str, str] = {}
        """Of jobs by their ids. States are kept by folder: two clusters may give one id."""

    def register_job(self, job_id: str) -> None:
        super().register_job(job_id)
        self._finished.discard(job_id)  # it may have been resumed

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        if job_id not in self._registered and job_id not in self._folders:  # a batch that is submitted by a first look
            self._folders = {_id_of(Path(folder)): folder for folder in self._registered}
        return super().get_info(self._folders.get(job_id, job_id), mode)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode).get("State", "UNKNOWN")

    def update(self) -> None:
        self._num_calls += 1
        seen = backends.states_of([_run(Path(folder)) for folder in sorted(self._registered - self._finished)])
        for run, _, state, _ in seen:
            known = {"State": _STATES.get(state.name, "UNKNOWN"), "Reason": f"{state.name}: {state.reason}"}
            self._info_dict[str(run.folder)] = {"JobID": run.id, **known}
        self._last_status_check = time.time()
        self._finished |= {str(row.run.folder) for row in seen if row.state.finished}


class RunJob(core.Job[Any]):
    """One run. Its result is the content of `result.json`; its id is Slurm's (`123_4`) where this machine's Slurm has
    it, else the run's name."""

    watcher = RunWatcher(delay_s=1)

    def __init__(self, folder: str | Path, job_id: str = "", tasks: Sequence[int] = (0,)) -> None:
        self.run_dir = Path(folder).expanduser().absolute()
        super().__init__(folder=self.run_dir, job_id=self.run_dir.name, tasks=tasks)

    def _register_in_watcher(self) -> None:
        self.watcher.register_job(str(self.run_dir))

    @property
    def job_id(self) -> str:
        return _id_of(self.run_dir)

    @property
    def run_id(self) -> str:
        return self.run_dir.name

    @property
    def paths(self) -> JobPaths:
        return _RunPaths(self.run_dir)

    @property
    def state(self) -> str:
        return self.watcher.get_state(str(self.run_dir))

    def get_info(self, mode: str = "force") -> dict[str, str]:
        return self.watcher.get_info(str(self.run_dir), mode=mode)

    def done(self, force_check: bool = False) -> bool:
        return self.watcher.is_done(str(self.run_dir), mode="force" if force_check else "standard")

    def cancel(self, check: bool = True) -> None:
        """End the run and wait for that: it is asked to save and stop, and killed after the `cluster.stop_before`
        seconds of its plan. Raises `LauncherError` where it can't be ended, unless `check` is false."""
        ((_, why_not),) = stopping.cancel([_run(self.run_dir)])
        self.watcher.update()
        if check and why_not:
            raise LauncherError(f"{self.run_id} could not be cancelled: {why_not}")

    def submission(self) -> DelayedSubmission:
        plan = record.of_run(store.read_or_empty(self.run_dir / "plan.json"), str(self.run_dir))
        return DelayedSubmission(execute.execute, plan)

    def _get_logs_string(self, name: str) -> str | None:
        return logs.text(_run(self.run_dir), f"{name}.log")

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        info = self.get_info("cache")
        if info.get("State") == "COMPLETED":
            return "success", store.read_or_empty(self.run_dir / "result.json")
        return "error", f"run {self.run_id} is {info.get('Reason', 'unknown')} (logs in {self.run_dir}/attempts)"

    def exception(self) -> FailedJobError | None:
        self.wait()
        outcome, text = self._get_outcome_and_result()
        return FailedJobError(text) if outcome == "error" else None

    def __del__(self) -> None:
        if self._cancel_at_deletion and not self.watcher.is_done(str(self.run_dir), mode="cache"):
            self.cancel(check=False)


class _RunPaths(JobPaths):
    """submitit's names for the logs of the newest attempt."""

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


def _id_of(folder: Path) -> str:
    if run_roots.is_remote(str(folder.parent)):
        return folder.name  # a file that its host names is not one of this machine
    files = run_files.load(str(folder))
    return (files.owner.mine and job_of(files.submission)) or folder.name


def _run(folder: Path) -> Run:
    return Run(str(folder.parent), folder.name)
