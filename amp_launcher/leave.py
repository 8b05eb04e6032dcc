"""How a training process ends: its exit code, and the one place that skips the interpreter's finalization."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import threading
from typing import NoReturn

DONE, FAILED, REFUSED, STOPPED, INTERRUPTED = 0, 1, 2, 85, 130
"""Exit codes; 85 is a stop on request with the state saved."""

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def finish(code: int) -> NoReturn:
    """End a process that has done its work: other threads are waited for, exit functions run, files are flushed."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_files()
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End the process from any thread, files unflushed."""
    # Finalization takes a second with a framework loaded, and Gloo's threads, which may still hold Python objects, can
    # abort in it. From a thread beside one that hangs nothing else ends the process.
    os._exit(code)


def flush_files() -> None:
    """Flush every open file, the standard streams too. Their types are asked, since an object may pretend a class."""
    files = [value for value in gc.get_objects() if issubclass(type(value), _BUFFERED)]
    for file in sorted(files, key=lambda file: not isinstance(file, io.TextIOBase)):  # text is above a buffer
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            file.flush()
