"""What the processes that a script starts did, where its own took no step."""

from __future__ import annotations

import mmap
import os
import resource
import struct

MATTERS = 1.0
"""Seconds of computing from which other processes may have trained: importing a framework takes longer."""
RANKS = "ranks are observed where train.processes=N starts them, by torchrun, or the script by torch's mp.spawn"
_NUMBER = struct.Struct("q")


class ChildProcesses:
    """Counts the optimizer steps that forked processes take, each of which adds to memory that all of them share."""

    def __init__(self) -> None:
        self.are_observed = False
        """Whether those that train are ranks that tell what they do."""
        self._process = os.getpid()
        self._shared = mmap.mmap(-1, _NUMBER.size)
        self._before = _seconds_of_ended()

    def stepped(self) -> None:
        """An optimizer has stepped in this process."""
        if os.getpid() != self._process:
            _NUMBER.pack_into(self._shared, 0, self._steps() + 1)  # of several at once, one may be lost

    def told(self) -> str:
        """What they did instead of the script's own process; empty where they did little."""
        seconds = _seconds_of_ended() - self._before
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
