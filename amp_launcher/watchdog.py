"""Tells when a process that trains takes no step for long: where each thread is, and on which rank.

It also notes where each of several ranks spends its time, which tells a slow one. The stacks are taken in the process
itself, by `faulthandler`: nothing has to be installed, no signal is used that a script may use, and no permission to
trace processes is needed, which containers and clusters often refuse. A thread of its own looks; a step costs nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import platform
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from amp_launcher.pace import Pace
from amp_launcher.run_folder import write_json
from amp_launcher.settings import Settings

FIRST = 3600.0
"""Seconds without a first step: data may be prepared, and kernels compiled."""
LEAST, TIMES, RECENT = 300.0, 20, 20
"""Later: so many seconds, and so many times the slowest of so many recent steps."""
LOOK_EVERY = 1.0
"""Seconds, on average: steps that take as long are not to be seen at one place each time."""
OTHERS = 5.0
"""Seconds before a rank that ends takes the others along, who tell where they are."""
HALTED = 10.0
"""Seconds between two looks that show that the whole process was halted, as by a suspended job."""
_LIBRARIES = (
    *(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")),
    *(
        os.path.join(os.path.dirname(__file__), name)
        for name in ("around", "loop", "precision", "torch", "tensorflow", "paddle")
    ),
    os.path.dirname(os.__file__),
    "<",
)
"""In the names of files that are nobody's training script."""


class Watchdog:
    """Looks at the progress of one rank."""

    def __init__(
        self,
        progress: Callable[[], Any],
        settings: Settings,
        run: Path | None,
        rank: int,
        end: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`progress` gives a value that changes with each step. `end` leaves the reason and ends the process: what
        hangs can't save, nor can it be asked to."""
        self._progress = progress
        self._after = settings.watchdog.after
        self._action = settings.watchdog.action
        self._run, self._rank = run, rank
        self._attempt = f"attempts/{os.environ.get('LAUNCHER_ATTEMPT') or 1}"
        self._clock, self._end = clock, end
        self._main = threading.main_thread().ident
        self._seen, self._stepped = progress(), False
        self._last = self._looked = clock()
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._told = False
        self._watches = False
        several = int(os.environ.get("LAUNCHER_TASKS") or os.environ.get("WORLD_SIZE") or 1) > 1
        self._pace = Pace(run, self._attempt, rank) if run and several else None
        self._dice = random.Random(rank)  # not the script's

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """In here a thread looks, unless `watchdog.after` is 0."""
        if self._after == 0:
            yield
            return
        self._watches = True
        _thread.start_new_thread(self._watch, ())  # which a script does not find among its own
        try:
            yield
        finally:
            self._watches = False

    def _watch(self) -> None:
        while self._watches:
            time.sleep(LOOK_EVERY * self._dice.uniform(0.5, 1.5))
            if self._watches:
                self.note()

    def note(self) -> None:
        """Note a step, or tell that none comes."""
        now, progress = self._clock(), self._progress()
        if now - self._looked > HALTED:
            self._last += now - self._looked
        self._looked = now
        silent = now - self._last
        if progress != self._seen:
            if self._stepped:
                self._gaps.append(silent)
            if self._told:
                self._say(f"takes steps again, after {silent:.0f} s; the next may take {self.limit:.0f} s")
            self._seen, self._stepped, self._last, self._told = progress, True, now, False
        elif not self._told and silent > self.limit:
            self._told = True
            self._tell(silent)
        if self._pace and self._stepped and not self._told:
            frame = sys._current_frames().get(self._main or 0)
            if frame is not None:
                self._pace.sample(frame, own_frame(frame))

    @property
    def limit(self) -> float:
        """Seconds without a step that are too many."""
        if not self._stepped:
            return max(FIRST, self._after or 0.0)
        slowest = max(self._gaps, default=0.0)
        if self._after is None:
            return max(LEAST, TIMES * slowest)
        return max(self._after, 2 * slowest)  # it may be shorter than a step

    def _tell(self, silent: float) -> None:
        stacks = self._leave_stacks()
        where = place_of(sys._current_frames().get(self._main or 0))
        sentence = f"took no step for {silent:.0f} s" + (f"; it is {where}" if where else "")
        self._leave_record(silent, where)
        self._say(f"{sentence}{f'; its stacks are in {stacks}' if stacks else ''}")
        if self._action != "tell":
            time.sleep(OTHERS)
            self._end(f"it {sentence} (watchdog.action={self._action})")

    def _leave_record(self, silent: float, where: str) -> None:
        """`hang-rankN.json`: for screens, and for who is to be told."""
        if self._run is not None:
            record = {"rank": self._rank, "node": platform.node(), "seconds": round(silent), "where": where}
            with contextlib.suppress(OSError):
                write_json(self._run / f"{self._attempt}/hang-rank{self._rank}.json", record)

    def _leave_stacks(self) -> str:
        """Write the stacks of all threads; the name of their file in the run folder, empty without one."""
        name = f"{self._attempt}/stacks-rank{self._rank}.txt"
        try:
            if self._run is None:
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
                return ""
            with open(self._run / name, "w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file)
        except (OSError, ValueError) as error:
            return f"no file ({error})"
        return name

    def _say(self, text: str) -> None:
        node = platform.node()
        print(f"watchdog: rank {self._rank} on {node} {text}", file=sys.stderr, flush=True)


def place_of(frame: FrameType | None) -> str:
    """Where a thread is, in the innermost frame that is no library's, and what that calls: `in train.py:88, in
    all_reduce of distributed_c10d.py:2810`. Empty for a thread that has ended."""
    if frame is None:
        return ""
    innermost, own = frame, own_frame(frame)
    at = f"at {os.path.basename(own.f_code.co_filename)}:{own.f_lineno}"
    if own is innermost:
        return at
    return f"{at}, in {innermost.f_code.co_name} of {os.path.basename(innermost.f_code.co_filename)}"


def own_frame(frame: FrameType) -> FrameType:
    """The innermost frame that is no library's."""
    while any(mark in frame.f_code.co_filename for mark in _LIBRARIES) and frame.f_back is not None:
        frame = frame.f_back
    return frame
