"""Reports and failures of a script's ranks, which they leave in the run folder for rank 0.

Files are used since the script's own process group may have been destroyed by then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRACE = 5.0
"""Seconds that a rank without a proof waits for rank 0 to write the result."""
PATIENCE = 60.0
"""Seconds that rank 0 waits at the end for the reports of the others."""
HURRY = 1.0
"""Seconds that rank 0 waits for them where a signal is about to end it."""


@dataclass(kw_only=True, slots=True)
class Reports:
    """What the ranks but the first have left."""

    of_steps: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    """Why the first of them failed; None if none did."""
    observed: dict[str, Any] = field(default_factory=dict)
    """The observation of that rank if its proof failed."""
    trained_nothing: bool = True
    """Whether each of them knows that it took no step."""

    @property
    def world_size(self) -> int:
        """The most ranks that one of them was among."""
        return max((report["world_size"] for report in self.of_steps), default=1)


def path_of(run: Path, rank: int) -> Path:
    """The file of a rank's report; its name is unique to this start of the job."""
    start = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}-{os.environ.get('LAUNCHER_ATTEMPT', '')}"
    return run / f".seen-{start}-{rank}.json"


def await_first(report: Path | None, failure: str) -> None:
    """Wait until rank 0 has read the report: when this process ends, torchrun ends rank 0 too.

    Prints `failure` if rank 0 did not read it in time.
    """
    until = time.monotonic() + GRACE
    while report and report.exists() and time.monotonic() < until:
        time.sleep(0.05)
    if not report or report.exists():
        print(f"script: {failure}", file=sys.stderr)


def collect(run: Path, size: int, patience: float) -> Reports:
    """A rank that wrote nothing within `patience` seconds has no report."""
    waiting = {path_of(run, rank) for rank in range(1, size)}
    found = Reports()
    until = time.monotonic() + patience
    while True:
        for path in sorted((path for path in waiting if path.exists()), key=lambda path: path.stat().st_mtime_ns):
            record = json.loads(path.read_text())
            path.unlink()
            waiting.remove(path)
            found.trained_nothing &= record["trained_nothing"]
            if record["failure"]:
                found.failure, found.observed = record["failure"], record["observed"]
                return found
            found.of_steps += record["reports"]
        if not waiting or time.monotonic() >= until:
            found.trained_nothing &= not waiting
            return found
        time.sleep(0.05)
