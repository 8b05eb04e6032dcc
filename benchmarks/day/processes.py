"""The processes of a day. A run leaves the session and the process group of the command that started it, but whatever
belongs to the day names the day's folder of runs: in its command or in its environment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GRACE = 10.0
"""Seconds from SIGTERM, by which a run removes its container, to SIGKILL."""

_LIBRARY, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def of(home: Path) -> list[int]:
    """The processes that name this folder; not this one."""
    name, found = os.fsencode(home), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if name in (entry / "cmdline").read_bytes() or name in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def end(home: Path, grace: float = GRACE) -> None:
    """End all that name this folder."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        last = time.monotonic() + grace
        while (left := of(home)) and time.monotonic() < last:
            for process in left:
                with contextlib.suppress(OSError):
                    os.kill(process, sign)
            time.sleep(0.2)


def run(
    argv: Sequence[str], *, seconds: float, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it in a process group of its own. Past the limit that is killed, and the exit code is 124. It dies with this
    process.

    What it prints goes into files: a process that it leaves behind would hold a pipe open, and who reads it.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        started = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        try:
            code, late = started.wait(seconds), ""
        except subprocess.TimeoutExpired:
            code, late = 124, f"\nnot done in {seconds:.0f} s"
        finally:
            with contextlib.suppress(OSError):  # all of it ended
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read(), err.read() + late)


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A folder for the day's runs. It is deleted, and its processes end, when the block ends or this process does, by
    SIGKILL too: a second process sees that, as the pipe between them closes."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-day-"))
    readable, writable = os.pipe()  # no child inherits the second
    watching = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.day.processes", str(readable), str(folder)],
        cwd=Path(__file__).parents[2],
        pass_fds=[readable],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(readable)
    try:
        yield folder
    finally:
        os.close(writable)
        watching.wait()


def _watch(readable: int, folder: Path) -> None:
    while os.read(readable, 1):
        pass
    end(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))
