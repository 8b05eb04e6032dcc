"""Stand-ins for Slurm's programs, which note each call, and runs that were submitted to them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.executors.local import start
from launcher.runs import store
from launcher.runs.states import State
from tests.launcher import run_folders

ACCOUNTS = "JobID State ExitCode Reason SystemComment AdminComment Comment"
"""What sacct can be asked for."""


class Programs:
    """Programs of Slurm that do what a test says. `sbatch` gives the ids 7, 8 and so on; the others print nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.does("sbatch", "echo $(($(wc -l <CALLS) + 6))")
        for name in ("sinfo", "scancel"):
            self.does(name, "true")
        self.says()

    def does(self, name: str, text: str) -> None:
        calls = f"{self.folder}/{name}.calls"
        asked = f'[ "$*" = --helpformat ] && exec echo {ACCOUNTS}\necho "$*" >>{calls}'
        (self.folder / name).write_text(f"#!/bin/sh\n{asked}\n{text.replace('CALLS', calls)}\n")
        (self.folder / name).chmod(0o755)

    def says(self, squeue: str = "", sacct: str = "", code: int = 0) -> None:
        self.does("squeue", f"printf %s {shlex.quote(squeue)}; exit {code}")
        self.does("sacct", f"printf %s {shlex.quote(sacct)}")

    def calls(self, name: str = "sbatch") -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, name: str = "squeue") -> int:
        return len(self.calls(name))


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
