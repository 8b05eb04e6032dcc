"""How long tests wait: bounds are written in seconds of a quiet machine, and stretched here to those of this one.

The unit is measured once, at the start of a session; processes that a test starts inherit it. A test as a whole has a
limit too, that of pytest-timeout, so a wait for a process needs none.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

QUIET = 0.03
"""Seconds in which a quiet machine starts and ends a Python."""
LIMIT = 600.0
"""Of a test, on a quiet machine."""
_STRETCH = "TESTS_STRETCH"


def scaled(seconds: float) -> float:
    return seconds * float(os.environ[_STRETCH])


def measure() -> None:
    """Measure the unit, unless a parent process has."""
    if _STRETCH not in os.environ:
        unit = statistics.median(_start() for _ in range(5))
        os.environ[_STRETCH] = f"{max(1.0, unit / QUIET):.2f}"
    os.environ.setdefault("PYTEST_TIMEOUT", f"{scaled(LIMIT):.0f}")


def _start() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return time.perf_counter() - began


measure()
