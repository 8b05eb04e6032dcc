"""The request to stop, for a user's script: a signal in each rank's own process, and KILL after a grace.

Nothing else is signalled before the grace is over: torchrun kills its workers 30 s after its own TERM, and an
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

from recipes import run_folder, script_stop
from recipes.preemption import SECONDS
from recipes.run_folder import RunFolder

MARGIN = 3.0
"""Seconds before the end of the grace at which the script is killed, so that the run can still record why."""
CONCLUDING = 2.0
"""Seconds at most, less than `MARGIN`, for the result of a script before a signal ends it."""


class StopSignal:
    """Around a script: watches for STOP in the run folder from a thread, once a second.

    The ranks look at whole seconds of the clock, so that those of one host see the file at once. Another host may see
    it later, as network file systems remember for a while that a file is missing.
    """

    def __init__(self, run: Path | None, plan: Mapping[str, Any], rank: int) -> None:
        """Does nothing without a run folder, and where the plan names no signal."""
        launched = os.environ.get("LAUNCHER_ATTEMPT")
        name = (plan.get("script") or {}).get("stop_signal")
        self._folder = RunFolder(path=run, attempt=int(launched)) if run and launched and name else None
        self._number = signal.Signals[f"SIG{name}"] if name else None
        self._grace = float((plan.get("cluster") or {}).get("stop_before") or 0)
        self.conclude: Callable[[int], object] = lambda code: None
        """Writes the result of a script that a signal is about to end with this exit code."""
        self._rank = rank
        self._raised = False
        self._over = threading.Event()
        self._signalling = threading.Lock()
        """So that nothing is raised once the script has ended."""

    def __enter__(self) -> StopSignal:
        if self._folder:
            threading.Thread(target=self._watch, args=(self._folder,), name="stop-signal", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signalling:
            self._over.set()

    def stopped(self, code: int, trace: str) -> bool:
        """Whether the script, which has ended, did so because it was asked to. Rank 0 records that.

        An exception means that it failed while it stopped: what it saved can't be relied on.
        """
        if self._folder is None or trace:
            return False
        # torchrun ends this rank with another one, which may have seen the request earlier.
        ended = bool(code) and self._folder.stop.exists()
        if not (self._raised or script_stop.requests.told or ended):
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
        end = max(self._grace - MARGIN, self._grace / 2)
        while True:
            waited = time.monotonic() - began
            # A script that asks by itself ends by itself; it is reminded if it has not asked for half of the grace.
            itself = script_stop.requests.told or (script_stop.requests.asked and waited < end / 2)
            with self._signalling:
                if self._over.is_set():
                    return
                if not self._raised and not itself:
                    self._raise(folder)
                if waited >= end:
                    self._kill(folder)
            self._over.wait(min(SECONDS, max(0.0, end - waited)))

    def _raise(self, folder: RunFolder) -> None:
        assert self._number is not None
        self._raised = True
        unhandled = signal.getsignal(self._number) is signal.SIG_DFL
        if self._rank == 0:
            does = "ends it, as it has no handler" if unhandled else "was raised in it"
            print(f"script: asked to stop: {self._number.name} {does}", file=sys.__stderr__, flush=True)
        try:
            if unhandled:
                folder.mark_ended()  # now: there is no later
                self._conclude(self._number)
        finally:  # on a full disk too
            # To the process, and not from this thread to itself: the kernel prefers the main thread, which then wakes
            # from whatever it waits for and runs the script's handler.
            os.kill(os.getpid(), self._number)

    def _kill(self, folder: RunFolder) -> None:
        try:
            (folder.stopped.parent / run_folder.OVERDUE).touch()
            self._conclude(signal.SIGKILL)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _conclude(self, number: signal.Signals) -> None:
        """In a thread that nothing waits for any longer than this: the script may hold a lock, or the disk hang."""
        concluding = threading.Thread(target=self.conclude, args=(128 + number,), name="conclude", daemon=True)
        concluding.start()
        if self._rank:
            time.sleep(CONCLUDING)  # torchrun ends the first rank as soon as this one has gone
        else:
            concluding.join(CONCLUDING)
