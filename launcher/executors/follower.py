"""`tracker=`: a process of its own, here where runs are submitted, sends them to a tracker until they have ended.

It is `export RUN to=TRACKER --follow`, which anybody may start again; what it prints is in `tracker.log`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from amp_launcher import records
from launcher import called
from launcher.errors import UsageError
from launcher.executors import tracker_packages
from launcher.runs import run_ids, run_roots, store


def check_tracker(tracker: str | None) -> None:
    """Raises `UsageError` where the tracker's package is not here, or too old."""
    if not tracker:
        return
    if importlib.util.find_spec(tracker) is None:
        raise UsageError(f"tracker={tracker} needs its package here: pip install 'amp-launcher[{tracker}]'")
    tracker_packages.refuse_old_packages(tracker, "tracker")


def start(folders: Sequence[Path], tracker: str | None) -> None:
    """Start it for a run, or for the runs of a sweep."""
    if not tracker:
        return
    first = folders[0]
    name = run_ids.sweep_of(first.name) if len(folders) > 1 else None
    root = str(first.parent)
    words = ["export", name or first.name, f"to={tracker}", "--follow"]
    words += [] if run_roots.is_remote(root) else [f"run_root={root}"]
    with open(first / store.TRACKER_LOG, "ab", opener=records.record) as log:
        subprocess.Popen(
            [*called.command(), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    print(f"to {tracker} as it comes; {first / store.TRACKER_LOG}", file=sys.stderr)
