"""What the ranks of a script leave for the first one: their reports, and why they failed.

They go over the run folder, since the script's own process group may be gone by then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

GRACE = 5.0
"""Seconds that another rank whose proof failed waits for the first one to write the result."""
PATIENCE = 60.0
"""Seconds that the first rank waits at the end for what the others saw."""
HURRY = 1.0
"""The same where a signal is about to end it."""


def path_of(run: Path, rank: int) -> Path:
    """Where a rank of this very start leaves what it saw. The script's own process group may be gone by then."""
    start = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}-{os.environ.get('LAUNCHER_ATTEMPT', '')}"
    return run / f".seen-{start}-{rank}.json"


def await_first(left: Path | None, failure: str) -> None:
    """Wait for the first rank, which mostly sees the same: when this process ends, torchrun ends that one too."""
    until = time.monotonic() + GRACE
    while left and left.exists() and time.monotonic() < until:
        time.sleep(0.05)
    if not left or left.exists():
        print(f"script: {failure}", file=sys.stderr)


def collect(run: Path, size: int, patience: float) -> tuple[list[dict[str, Any]], str | None, dict[str, Any]]:
    """What the other ranks left, and why the first of them failed, if any did, and what was observed there if that was
    a failed proof. One that left nothing within `patience`, in seconds, is missed by the verdict."""
    waiting = {path_of(run, rank) for rank in range(1, size)}
    found: list[dict[str, Any]] = []
    until = time.monotonic() + patience
    while True:
        for path in sorted((each for each in waiting if each.exists()), key=lambda each: each.stat().st_mtime_ns):
            left = json.loads(path.read_text())
            path.unlink()
            waiting.remove(path)
            if left["failure"]:
                return found, left["failure"], left["observed"]
            found += left["reports"]
        if not waiting or time.monotonic() >= until:
            return found, None, {}
        time.sleep(0.05)
