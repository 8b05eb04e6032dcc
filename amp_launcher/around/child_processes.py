"""What the processes that a script starts did, where its own took no step."""

from __future__ import annotations

import mmap
import os
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

MATTERS = 1.0
"""Seconds of computing from which other processes may have trained: importing a framework takes longer."""
RANKS = "ranks are observed where train.processes=N starts them, by torchrun, or the script by torch's mp.spawn"
FRAMEWORKS = (b"/libtorch_cpu.so", b"/libtensorflow", b"/libpaddle.so")
"""Libraries that a process has which trains; a tracker's has none of them."""
COMPILES = b"compile_worker"
"""In the command of the processes in which torch compiles, which have it too."""
TICKS = os.sysconf("SC_CLK_TCK")
"""In a second."""
_NUMBER = struct.Struct("q")


class ChildProcesses:
    """Counts the optimizer steps that forked processes take, each of which adds to memory that all of them share."""

    def __init__(self) -> None:
        self.are_observed = False
        """Whether those that train are ranks that tell what they do."""
        self._process = os.getpid()
        self._shared = mmap.mmap(-1, _NUMBER.size)
        self._before = _seconds_of_ended()
        self._began = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)

    def stepped(self) -> None:
        """An optimizer has stepped in this process."""
        if os.getpid() != self._process:
            _NUMBER.pack_into(self._shared, 0, self._steps() + 1)  # of several at once, one may be lost

    def told(self) -> str:
        """What they did instead of the script's own process; empty where they did little."""
        seconds = _seconds_of_ended() - self._before + _seconds_of_living(os.getpid(), self._began)
        if steps := self._steps():
            did = f"processes that the script forked took {steps} optimizer steps"
        elif seconds >= MATTERS and not self.are_observed:
            did = f"processes that the script started computed for {seconds:.0f} s"
        else:
            return ""
        return f"{did}, and are not observed; {RANKS}"

    def _steps(self) -> int:
        return int(_NUMBER.unpack_from(self._shared, 0)[0])


def _seconds_of_ended() -> float:
    """What the processes that this one started, and that have ended, computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds_of_living(process: int, since: int) -> float:
    """What the processes below this one computed that live, as Ray's do until the script ends, that have a framework,
    and that were started since so many ticks after the machine's start."""
    ticks, children = {}, dict[int, list[int]]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        ticks[pid := int(stat.parent.name)] = int(fields[11]) + int(fields[12]) if int(fields[19]) >= since else 0
        children.setdefault(int(fields[1]), []).append(pid)
    return sum(ticks[pid] for pid in _below(process, children) if _may_train(pid)) / TICKS


def _below(process: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(process, ()):
        yield child
        yield from _below(child, children)


def _may_train(process: int) -> bool:
    folder = Path(f"/proc/{process}")
    try:
        if COMPILES in (folder / "cmdline").read_bytes():
            return False
        maps = (folder / "maps").read_bytes()
    except OSError:
        return False
    return any(library in maps for library in FRAMEWORKS)
