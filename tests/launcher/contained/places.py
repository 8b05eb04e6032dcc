"""Finding the run that was just started, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from launcher.runs import selection


def started(root: Path) -> Path:
    """The folder of the one run there."""
    (run,) = selection.newest([str(root)], 1)
    return run.folder


def until(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)
