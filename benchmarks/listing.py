"""Listing runs where there are many."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.measure import Measured, Timing, by_turns, command
from benchmarks.places import environment, launcher
from launcher.runs import store
from tests.launcher import run_folders

FEW, MANY, MOST = 1_000, 10_000, 100_000
ROUNDS = 15
LINKS = 50_000
"""Names that a file gets; ext4 allows 65,000."""


def many(folder: Path) -> Measured:
    timings = _beside(folder, "ls")
    claim = f"`ls` over {MOST:,} run folders at most 4 times its time over {FEW:,}"
    return Measured(claim=claim, limit=4.0, timings=timings)


def find(folder: Path) -> Measured:
    """The first look of each root, which reads the name of every run, is among those that aren't counted."""
    timings = _beside(folder, "ls", "brave-otter-0007")
    claim = f"one run found by its words among {MOST:,} in at most 6 times the time among {FEW:,}"
    return Measured(claim=claim, limit=6.0, timings=timings)


def _beside(folder: Path, *words: str) -> dict[str, Timing]:
    environ, cases = environment(folder), {}
    for count in (MOST, FEW):
        root = folder / str(count)
        linked(root, count)
        cases[f"{' '.join(words)} of {count:,}"] = command(launcher(*words, f"run_root={root}"), folder, environ)
    return by_turns(cases, ROUNDS)


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


def linked(root: Path, count: int) -> None:
    """The cells of a finished sweep, most of whose files are links to those of another one: so 100,000 take seconds."""
    names = [f"20260101-000000-brave-otter-{number:04}" for number in range(count)]
    for start in range(0, count, LINKS):
        first = run_folders.finished(root, names[start])
        store.write_json(first / "result.json", run_folders.result())
        files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
        for name in names[start + 1 : start + LINKS]:
            os.makedirs(root / name / "attempts/1", 0o700)
            for file in files:
                os.link(first / file, root / name / file)
