"""Starting prepared run folders on this machine, and writing down where a run was handed to.

Submission itself, without submitit: the executors are a face on this, and importing it costs 30 ms.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import processes, run_ids, runs
from launcher.execute import environment


def start_here(folders: Sequence[Path]) -> None:
    """Start runs now, in a session of their own that outlives the launcher. Several run in turn."""
    if len(folders) == 1:
        _start(folders, ["bash", str(folders[0] / "run.sh")], folders[0] / "launch.log")
        return
    # setsid gives each cell a session of its own, so that one can be ended without the others.
    turns = 'for folder in "$@"; do setsid --wait bash "$folder/run.sh"; done'
    log = folders[0] / "launch.log"
    _start(folders, ["bash", "-c", turns, "sweep", *(str(each) for each in folders)], log)


def _start(folders: Sequence[Path], argv: Sequence[str], log: Path) -> None:
    """Start a detached process and leave word of it in each folder it will work through."""
    firsts = [next_attempt(folder) for folder in folders]
    # First this process's own identity: as long as it lives, a run without a status is being started.
    mine = processes.identity(os.getpid())
    for folder, first in zip(folders, firsts, strict=True):
        record_submission(folder, queue="direct", first_attempt=first, process=_plain(mine))
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment(),
        )
    identity = processes.identity(started.pid)
    for folder, first in zip(folders, firsts, strict=True):
        record_submission(folder, queue="direct", first_attempt=first, process=_plain(identity))


def _plain(process: processes.Identity | None) -> dict[str, Any] | None:
    return processes.to_json(process) if process else None


def next_attempt(folder: Path) -> int:
    """The number that the next attempt of a run will have. Ask before it may start."""
    return max(runs.attempts(folder), default=0) + 1


def record_submission(folder: Path, *, queue: str, first_attempt: int, **where: Any) -> None:
    """Write down that a run was handed to a queue, and how it is found there."""
    record = {
        "schema": 1,
        "queue": queue,
        "host": processes.host(),
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sweep": run_ids.sweep_of(folder.name),
        "first_attempt": first_attempt,
        **where,
    }
    runs.write_json(folder / "submission.json", record)
