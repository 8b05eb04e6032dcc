"""Terminals in what `up` started: whether one is open, and for how long none has been."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from launcher import safe_files

MARK = ".terminal"
"""Of a run folder: held locked by each open terminal, and touched when one opens or closes."""


def idle(folder: str, started: float) -> float:
    """For how many seconds no terminal has been opened or closed in what has run since `started`; 0 while one is
    open."""
    with contextlib.suppress(OSError), open(f"{folder}/{MARK}", "rb", opener=safe_files.regular) as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is locked; or nobody can say, on a file system without locks
            return 0
        started = max(started, os.fstat(mark.fileno()).st_mtime)
    return max(1.0, time.time() - started)
