"""Terminals in what `up` started: whether one is open, and since when none is."""

from __future__ import annotations

import fcntl
import os

from launcher import safe_files

MARK = ".terminal"
"""Of a run folder: held locked by each open terminal, and touched when one opens or closes."""


def idle_since(folder: str, started: float) -> float | None:
    """When the last terminal was opened or closed, in seconds since 1970, `started` where there was none; None while
    one is open."""
    try:
        opened = safe_files.regular(f"{folder}/{MARK}", os.O_RDONLY)
    except OSError:
        return started
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return max(started, os.fstat(opened).st_mtime)
    except OSError:  # it is locked; or nobody can say, on a file system without locks
        return None
    finally:
        os.close(opened)
