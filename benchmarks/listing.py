"""Listing runs where there are many."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import environment, launcher
from launcher.runs import store
from tests.launcher import run_folders

FEW, MANY = 10, 10_000
ROUNDS = 15


def many(folder: Path) -> Measured:
    environ = environment(folder)
    cases = {}
    for count in (MANY, FEW):
        root = folder / str(count)
        finished(root, count)
        cases[f"ls of {count:,}"] = command(launcher("ls", f"run_root={root}"), folder, environ)
    claim = "`ls` over 10,000 run folders at most twice its time over ten"
    return Measured(claim=claim, limit=2.0, timings=by_turns(cases, ROUNDS))


READ = """import json, pathlib, sys
for folder in pathlib.Path(sys.argv[1]).glob("2026*"):
    for name in ("submission.json", "plan.json", "status.json", "result.json"):
        json.loads((folder / name).read_bytes())
"""


def every(folder: Path) -> Measured:
    environ = environment(folder)
    root = folder / "all"
    finished(root, MANY)
    cases = {
        f"ls --all of {MANY:,}": command(launcher("ls", "--all", f"run_root={root}"), folder, environ),
        "Python that reads their files": command([sys.executable, "-c", READ, str(root)], folder, environ),
    }
    claim = "`ls --all` over 10,000 run folders at most twice what plain Python takes to read their four files"
    return Measured(claim=claim, limit=2.0, timings=by_turns(cases, ROUNDS))


def finished(root: Path, count: int) -> None:
    """Folders of `count` finished runs, a minute apart."""
    for number in range(count):
        day, minute = divmod(number, 24 * 60)
        stamp = f"2026{1 + day // 28:02}{1 + day % 28:02}-{minute // 60:02}{minute % 60:02}00"
        folder = run_folders.finished(root, f"{stamp}-brave-otter")
        store.write_json(folder / "result.json", run_folders.result())
