"""Listing runs where there are many."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import environment, launcher

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


def finished(root: Path, count: int) -> None:
    """Folders of `count` finished runs, a minute apart."""
    root.mkdir()
    for number in range(count):
        day, minute = divmod(number, 24 * 60)
        stamp = f"2026{1 + day // 28:02}{1 + day % 28:02}-{minute // 60:02}{minute % 60:02}00"
        run = root / f"{stamp}-brave-otter"
        os.makedirs(run / "attempts/1")
        for name, content in _FILES.items():
            (run / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


_PROCESS = {"host": "elsewhere", "boot": "0", "pid": 1, "start": 1}
_FILES = {
    "plan.json": {"schema": 1, "name": "mnist-o2", "words": ["amp=o2", "batch=128"]},
    "submission.json": {
        "schema": 1,
        "queue": "direct",
        "host": "elsewhere",
        "submitted": "2026-01-02T03:04:04Z",
        "sweep": None,
        "first_attempt": 1,
        "process": _PROCESS,
    },
    "status.json": {
        "schema": 1,
        "state": "done",
        "attempt": 1,
        "exit_code": 0,
        "started": "2026-01-02T03:04:05Z",
        "ended": "2026-01-02T03:05:10Z",
        "reason": "",
        "process": _PROCESS,
    },
    "result.json": {
        "schema": 1,
        "status": "done",
        "requested": {"amp": "o2", "dtype": "auto", "batch": 128},
        "effective": {"amp": "o2", "dtype": "bfloat16", "batch": 128},
        "observed": {"verdict": "proved", "why": "97% of the work in bfloat16"},
        "throughput": {"unit": "samples/s", "mean": 3410.5, "median": 3400.0, "p10": 3100.0, "p90": 3600.0},
        "eval": {"accuracy": 0.9722, "loss": 0.1},
    },
}
