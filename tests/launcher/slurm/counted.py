"""Stand-ins for Slurm's programs, which note each call, and runs that were submitted to them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.executors.local import start
from launcher.runs import store
from launcher.runs.states import State
from tests.launcher import run_folders

STAND_IN = """#!/bin/sh
[ "$*" = --helpformat ] && exec echo JobID State ExitCode Reason SystemComment AdminComment Comment
echo "$(date +%s.%N) ${0##*/}" >>CALLS
cat "FOLDER/${0##*/}.out" 2>/dev/null
exit $(cat "FOLDER/${0##*/}.code" 2>/dev/null || echo 0)
"""


class Cluster:
    """squeue, sacct and scancel that print what a test says and note each call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._calls = folder, folder / "calls"
        folder.mkdir()
        for name in ("squeue", "sacct", "scancel"):
            (folder / name).write_text(STAND_IN.replace("CALLS", str(self._calls)).replace("FOLDER", str(folder)))
            (folder / name).chmod(0o755)

    def says(self, squeue: str = "", sacct: str = "", code: int = 0) -> None:
        (self.folder / "squeue.out").write_text(squeue)
        (self.folder / "squeue.code").write_text(str(code))
        (self.folder / "sacct.out").write_text(sacct)

    def calls(self, name: str = "squeue") -> int:
        return self._calls.read_text().count(name) if self._calls.exists() else 0


class Job(NamedTuple):
    """A run that sbatch accepted as the job of that number."""

    folder: Path
    number: int

    def row(self, state: str, reason: str = "None") -> str:
        """What squeue prints of it."""
        return f"{self.number}|{state}|{reason}|{self.folder}/run.sh\n"

    def writes(self, **status: object) -> None:
        store.write_json(self.folder / "status.json", {"schema": 1, "attempt": 1, **status})

    def look(self) -> State:
        return run_folders.state(self.folder)


def submitted(
    root: Path,
    number: int = 7,
    name: str = run_folders.NAME,
    status: Mapping[str, object] | None = None,
    plan: dict[str, Any] | None = None,
) -> Job:
    folder = run_folders.make(root, name, plan=plan)
    (folder / "sbatch.1.out").write_text(f"{number}\n")
    record(folder, folder / "sbatch.1.out")
    job = Job(folder, number)
    if status is not None:
        (folder / "attempts/1").mkdir(parents=True)
        job.writes(**status)
        os.utime(folder / "status.json", (time.time() - 5,) * 2)
    return job


def record(folder: Path, answer: Path) -> None:
    """Record that the run was submitted, with sbatch's answer in that file."""
    start.record_submission(folder, queue="slurm", first_attempt=1, script=f"{folder}/run.sh", answer=str(answer))
