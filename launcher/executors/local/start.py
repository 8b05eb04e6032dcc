"""Starting prepared run folders on this machine, and recording where a run was submitted. No submitit."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amp_launcher import records
from launcher import bash_files
from launcher.errors import Unavailable
from launcher.executors import dependency, interrupts
from launcher.executors.execute import environment_of
from launcher.plan.model import Plan
from launcher.probe import gpu_locks
from launcher.runs import processes, run_files, run_ids, store
from launcher.runs.schema import Status, Submission

GPUS_TIMEOUT = 60.0
"""Seconds to wait for a run to say whether it has its GPUs."""


def start_here(folders: Sequence[Path], plans: Sequence[Plan]) -> None:
    """Start runs now, in a session that outlives the launcher. Several run in turn or, if they take GPUs of this host,
    each as soon as enough are free. Raises `StartRefused` if the first gets no GPUs."""
    for folder, plan in zip(folders, plans, strict=True):
        if plan.after:
            dependency.write(folder, plan.after)
    firsts = [next_attempt(folder) for folder in folders]
    sweep = run_ids.sweep_of(folders[0].name) if len(folders) > 1 else None  # whose process drives all of its runs
    argv = ["bash", str(folders[0] / "run.sh")]
    if len(folders) > 1:
        argv = ["bash", "-c", bash_files.text("launcher.executors", "sweep.sh"), "sweep", *map(str, folders)]

    def record(pid: int) -> None:
        process = processes.to_json(processes.identity(pid))
        for folder, first in zip(folders, firsts, strict=True):
            record_submission(folder, queue="direct", first_attempt=first, sweep=sweep, process=process)

    record(os.getpid())  # while the launcher lives, a run without a status is being started
    with open(folders[0] / "launch.log", "ab", opener=records.record) as log:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environment_of(plans[0]),
        )
    record(started.pid)
    if plans[0].gpu_pool:
        _await_gpus(started, folders[0], firsts[0])


class StartRefused(Unavailable):
    """The host's GPUs are taken; nothing runs."""


def _await_gpus(started: subprocess.Popen[bytes], folder: Path, first: int) -> None:
    """Wait until a run has taken its GPUs, waits for them, or has ended. Raises `StartRefused`."""
    deadline = time.monotonic() + GPUS_TIMEOUT
    while started.poll() is None and time.monotonic() < deadline and not interrupts.noted():
        status = store.read(Status, folder / "status.json")
        if (status.attempt or 0) >= first and not _is_refusal(status):
            return
        time.sleep(0.02)
    status = store.read(Status, folder / "status.json")
    if started.poll() == gpu_locks.REFUSED and _is_refusal(status):
        raise StartRefused(f"{status.reason} ({gpu_locks.HINT})")


def _is_refusal(status: Status) -> bool:
    """Whether a script failed before it started its trainer."""
    return status.state == "failed" and status.exit_code is None


def next_attempt(folder: Path) -> int:
    """The number of the run's next attempt. To be read before that may start."""
    return max(store.attempts(folder), default=0) + 1


def record_submission(folder: Path, *, queue: str, first_attempt: int, **where: Any) -> None:
    """Record that a run was submitted to a queue, and how to find it there."""
    before = store.read(Submission, folder / "submission.json")
    is_known = before.id is not None and not run_files.original(str(folder), before)
    record = {
        "schema": 1,
        "id": before.id if is_known else os.urandom(8).hex(),
        "folder": str(folder),
        "queue": queue,
        "host": processes.host(),
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sweep": run_ids.sweep_of(folder.name),
        "first_attempt": first_attempt,
        **where,
    }
    store.write_json(folder / "submission.json", record)
