"""Stops a user's script: raises a signal in the process of each rank, and sends KILL after a grace period.

Nothing else is signalled before the grace period is over: torchrun kills its workers 30 s after its own TERM, and an
unprivileged Apptainer image loses its file system to a TERM of the whole group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from amp_launcher import run_folder
from amp_launcher.job import stop as script_stop
from amp_launcher.run_folder import RunFolder
from amp_launcher.world import preemption
from amp_launcher.world.preemption import SECONDS

MARGIN = 3.0
"""Seconds before the end of the grace period at which the script is killed, so that the run can record why."""
CONCLUDING = 2.0
"""Largest time for writing the result of a script before a signal ends it, in seconds; less than `MARGIN`."""


class StopSignal:
    """A context around a script: a thread looks for STOP in the run folder once a second.

    All ranks look at whole seconds of the clock, so that those of one host see the file at the same time. Another host
    may see it later, since network file systems cache for a while that a file is missing.
    """

    def __init__(self, run: Path | None, plan: Mapping[str, Any], rank: int) -> None:
        """Does nothing without a run folder. Where the plan names no signal, none is raised."""
        launched = os.environ.get("LAUNCHER_ATTEMPT")
        name = (plan.get("script") or {}).get("stop_signal")
        self._folder = RunFolder(path=run, attempt=int(launched)) if run and launched else None
        self._number = signal.Signals[f"SIG{name}"] if name else None
        self._grace = float((plan.get("cluster") or {}).get("stop_before") or 0)
        self.conclude: Callable[[int], object] = lambda code: None
        """Writes the result of a script that a signal is about to end with this exit code."""
        self._rank = rank
        self._raised = False
        self._over = threading.Event()
        self._signalling = threading.Lock()
        """Held while a signal is raised, so that none is raised after the script has ended."""

    def __enter__(self) -> StopSignal:
        if self._folder and self._number:
            threading.Thread(target=self._watch, args=(self._folder,), name="stop-signal", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signalling:
            self._over.set()

    @property
    def asked(self) -> bool:
        """Whether the script of this rank was asked to stop: by the signal, or by the answer of `should_stop`."""
        return self._raised or script_stop.requests.answered_true

    def stopped(self, code: int, trace: str) -> bool:
        """Whether the script ended because it was asked to stop; rank 0 records that.

        With an exception it failed while it stopped, so its checkpoint can't be relied on.
        """
        if self._folder is None or trace:
            return False
        # Another rank may have seen the request earlier, and torchrun then ends this one.
        ended_by_torchrun = bool(code) and self._folder.stop.exists()
        if not (self.asked or ended_by_torchrun):
            return False
        if self._rank == 0:
            self._folder.mark_ended()
        # torchrun ends this rank by TERM once another was killed, and the script's handler would only prolong that.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return True

    def _watch(self, folder: RunFolder) -> None:
        while not folder.stop.exists():
            if self._over.wait(SECONDS - time.time() % SECONDS):
                return
        began = time.monotonic()
        seconds = folder.stop_request().seconds
        grace = self._grace if seconds is None else seconds
        end = max(grace - MARGIN, grace / 2)
        while True:
            waited = time.monotonic() - began
            # A script that calls should_stop ends by itself. If it has not called it again after half of the grace
            # period, it gets the signal.
            ends_itself = script_stop.requests.answered_true or (script_stop.requests.called and waited < end / 2)
            with self._signalling:
                if self._over.is_set():
                    return
                if not self._raised and not ends_itself:
                    self._raise(folder)
                if waited >= end:
                    self._kill(folder, end)
            self._over.wait(min(SECONDS, end - waited))

    def _raise(self, folder: RunFolder) -> None:
        assert self._number is not None
        self._raised = True
        # The handler of should_stop saves nothing by itself.
        unhandled = signal.getsignal(self._number) is signal.SIG_DFL or preemption.catches(self._number)
        if self._rank == 0:
            effect = "ends it, as it has no handler" if unhandled else "was raised in it"
            print(f"script: asked to stop: {self._number.name} {effect}", file=sys.__stderr__)
        try:
            if unhandled:
                folder.mark_ended()  # before the signal ends the process
                self._conclude(self._number)
        finally:  # on a full disk too
            # While its result was written the script may have set a handler, as one does that has just imported its
            # libraries. Its next step would wait for the process to end. A thread can't take a handler away.
            late = unhandled and signal.getsignal(self._number) is not signal.SIG_DFL
            # To the process instead of this thread: the kernel prefers the main thread, whose system call it interrupts
            # and which then runs the script's handler.
            os.kill(os.getpid(), signal.SIGKILL if late else self._number)

    def _kill(self, folder: RunFolder, seconds: float) -> None:
        try:
            (folder.stopped.parent / run_folder.OVERDUE).write_text(f"{seconds:g}\n")
            self._conclude(signal.SIGKILL)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _conclude(self, number: signal.Signals) -> None:
        """Write the result in a thread, within `CONCLUDING` seconds: the script may hold a lock, or the disk hang."""
        concluding = threading.Thread(target=self.conclude, args=(128 + number,), name="conclude", daemon=True)
        concluding.start()
        if self._rank:
            time.sleep(CONCLUDING)  # torchrun ends rank 0 as soon as this rank has ended
        else:
            concluding.join(CONCLUDING)
