"""Which steps of a run are profiled, none of which is observed, and the result's record of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from amp_launcher.precision.gpu_kernels import tensor_core_share
from amp_launcher.settings import Profile
from amp_launcher.typed import SettingsError

FOLDER = "profile"


class Profiler(Protocol):
    """A framework's own profiler, or the recorded range of one that runs around the process."""

    trace: str
    """Name of the trace in the folder; empty where it leaves none."""

    def start(self) -> None: ...

    def stop(self, folder: Path) -> Mapping[str, float]:
        """Leave the trace in the folder; return the GPU's kernels by name, with microseconds, none on a CPU."""


class Profiling:
    """The profiled steps of one run, on one rank."""

    def __init__(self, profile: Profile, profiler: Profiler | None, run: Path | None) -> None:
        if profile.tool == "framework" and run is None:
            raise SettingsError("profile=framework leaves a trace in the run folder: say run=FOLDER")
        self.record: dict[str, Any] = {}
        """result.json's "profile"; empty where nothing was recorded."""
        self.note = ""
        """A message where other steps are recorded than those that were asked for."""
        self.running = False
        self.steps = range(0)
        """The steps to record, counted from 1."""
        self._profile = profile
        self._profiler = profiler
        self._run = run
        self._asked = range(profile.start, profile.start + profile.steps)
        self._first = 0

    def choose(self, first: int, last: int, *, goes_on: bool = False) -> None:
        """Decide on the steps of an attempt that takes `first` to `last`, counted from 1, and observes these two.

        Where the run `goes_on` in another attempt, the last is not observed, and that one may be the one to record in.
        Raises `SettingsError` where the run is too short; one that resumes near its end goes on without a profile.
        """
        if self._profiler is None or (goes_on and self._profile.start > last):
            return
        start = max(self._profile.start, first + 1)
        self.steps = range(start, min(start + self._profile.steps, last + goes_on))
        if not self.steps and first > 1:
            takes = f"steps {first} to {last}, and observes both" if first < last else "no step that is not observed"
            self.note = f"profiling no step: this attempt takes {takes}"
        elif not self.steps:
            raise SettingsError(
                f"profile.start={self._profile.start}: this run has {last} steps, and its first and last prove the "
                "precision; say more steps or an earlier start"
            )
        elif self.steps != self._asked:
            why = f"this run has {last} steps, the last of which is observed"
            if self._asked[0] <= first:
                why = f"this attempt begins with step {first}"
            elif goes_on:
                why = f"this attempt ends with step {last}"
            self.note = f"profiling {_named(self.steps)} instead of {_named(self._asked)}: {why}"

    def choose_within(self, first: int, last: int, stop_every: int) -> None:
        """The same for an attempt that takes these steps, or those up to its planned stop: after each `stop_every`."""
        end = min(last, ((first - 1) // stop_every + 1) * stop_every) if stop_every else last
        self.choose(first, end, goes_on=end < last)

    def whenever(self) -> None:
        """Record from `profile.start` on, in a loop of unknown length."""
        if self._profiler is not None:
            self.steps = self._asked

    def between(self, number: int) -> None:
        """Step `number` is next, of a loop of unknown length whose steps are seen only now and then: once the first
        that was asked for is reached, as many are recorded from here."""
        if self._profiler is None or self.running or self.record or number < self._asked[0]:
            return
        self.steps = range(number, number + len(self._asked))
        if self.steps != self._asked:
            why = "it begins where an execution of the script ends"
            self.note = f"profiling {_named(self.steps)} instead of {_named(self._asked)}: {why}"
        self.before(number)

    def before(self, number: int, count: int = 1) -> None:
        """The steps from `number` on are about to be taken, in one execution."""
        if self._profiler is not None and not self.running and not self.record and self._touches(number, count):
            self.running = True
            self._first = number
            self._profiler.start()

    def after(self, number: int) -> None:
        """The steps up to `number` have been taken."""
        if self.running and number >= self.steps[-1]:
            self.end(number)

    def end(self, number: int) -> None:
        """Leave the trace after the last step, `number`. torch's profiler crashes a process that ends while it
        records."""
        if not self.running:
            return
        assert self._profiler is not None
        self.running = False
        if number < self._first:  # a script ended where the first was about to begin
            with tempfile.TemporaryDirectory() as aside:
                self._profiler.stop(Path(aside))
            return
        folder = (self._run or Path()) / FOLDER
        if self._profiler.trace:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kernels = self._profiler.stop(folder)
        self.record = {
            "tool": self._profile.tool,
            "steps": [self._first, number],
            "instead_of": [self._asked[0], self._asked[-1]] if self.note else None,
            "trace": f"{FOLDER}/{self._profiler.trace}" if self._profiler.trace else None,
            "tensor_core_share": tensor_core_share(kernels),
        }

    def _touches(self, number: int, count: int) -> bool:
        return bool(self.steps) and number <= self.steps[-1] and number + count > self.steps[0]


def _named(steps: range) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
