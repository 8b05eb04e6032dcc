"""Which steps of a run are profiled, and what is said of them afterwards: neither warm-up nor proof is among them."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from recipes.metrics import warm_up
from recipes.precision.tensor_core_kernels import tensor_core_share
from recipes.settings import Profile
from recipes.typed import SettingsError

FOLDER = "profile"


class Profiler(Protocol):
    """What records: a framework's own profiler, or the range of one that is around the process."""

    trace: str
    """Name of what it leaves in the folder, empty where it leaves nothing."""

    def start(self) -> None: ...

    def stop(self, folder: Path) -> Mapping[str, float]:
        """Leave the trace in the folder. The GPU's kernels by name, with microseconds; none on a CPU."""


class Profiling:
    """The profiled steps of one run, on one rank."""

    def __init__(self, profile: Profile, profiler: Profiler | None, run: Path | None) -> None:
        if profile.tool == "framework" and run is None:
            raise SettingsError("profile=framework leaves a trace in the run folder: say run=FOLDER", "profile")
        self.found: dict[str, Any] = {}
        """result.json's "profile"; empty where nothing was recorded."""
        self.note = ""
        """What to say where other steps are recorded than those that were asked for."""
        self.running = False
        self._profile = profile
        self._profiler = profiler
        self._run = run
        self._steps = range(0)
        self._asked = range(profile.start, profile.start + profile.steps)
        self._first = 0
        self._began = 0.0

    def choose(self, first: int, last: int, taken: Collection[int], *, goes_on: bool = False) -> None:
        """Decide on the steps, of `first` to `last` counted from 1, but for those that are `taken`.

        Where the run `goes_on` in another attempt, that may be the one to record in.
        """
        if self._profiler is None or (goes_on and self._profile.start > last):
            return
        self._steps = window(self._profile, first, last, taken)
        if self._steps != self._asked:
            why = _why_not(self._asked, first, last, goes_on)
            self.note = f"profiling {_named(self._steps)} instead of {_named(self._asked)}: {why}"

    def whenever(self) -> None:
        """Take the steps from `profile.start` on, of a loop whose length nobody knows."""
        if self._profiler is not None:
            self._steps = self._asked

    def between(self, number: int) -> None:
        """Step `number` is next, of a loop of unknown length whose steps are seen only now and then: once the first
        that was asked for is reached, as many are recorded from here."""
        if self._profiler is None or self.running or self.found or number < self._asked[0]:
            return
        self._steps = range(number, number + len(self._asked))
        if self._steps != self._asked:
            why = "it begins where an execution of the script ends"
            self.note = f"profiling {_named(self._steps)} instead of {_named(self._asked)}: {why}"
        self.before(number)

    def before(self, number: int, count: int = 1) -> None:
        """The steps from `number` on are about to be taken, in one execution."""
        if self._profiler is not None and not self.running and not self.found and self._touches(number, count):
            self.running = True
            self._first = number
            self._began = time.perf_counter()
            self._profiler.start()

    def after(self, number: int) -> None:
        """The steps up to `number` have been taken."""
        if self.running and number >= self._steps[-1]:
            self.end(number)

    def end(self, number: int) -> None:
        """No step is taken any more after this one: leave what was recorded. A profiler that still records when its
        process ends crashes it, as torch's does."""
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
        self.found = {
            "tool": self._profile.tool,
            "steps": [self._first, number],
            "instead_of": [self._asked[0], self._asked[-1]] if self.note else None,
            "seconds": time.perf_counter() - self._began,
            "trace": f"{FOLDER}/{self._profiler.trace}" if self._profiler.trace else None,
            "tensor_core_share": tensor_core_share(kernels),
        }

    def _touches(self, number: int, count: int) -> bool:
        return bool(self._steps) and number <= self._steps[-1] and number + count > self._steps[0]


def _named(steps: range) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"


def _why_not(asked: range, first: int, last: int, goes_on: bool) -> str:
    if asked[0] < first:
        return f"this attempt begins with step {first}"
    if goes_on and asked[-1] > last:
        return f"this attempt ends with step {last}"
    if asked[-1] >= last and not goes_on:
        return f"this run has {last} steps, the last of which is observed"
    return "a step among those is observed"


def window(profile: Profile, first: int, total: int, taken: Collection[int]) -> range:
    """The steps to record: the first that many from `profile.start` on that hold none that is taken, else the last that
    many before them that hold no warm-up either; fewer where there is no room for that many.

    Raises `SettingsError` where the run is too short.
    """
    low = max(profile.start, first)
    warm = first + warm_up(total - first + 1)
    if all(step in taken for step in range(low, total + 1)):
        raise SettingsError(
            f"profile.start={profile.start}: this run has {total} steps, and its first and last prove the precision; "
            "say more steps or an earlier start",
            "profile.start",
        )
    for length in range(profile.steps, 0, -1):
        for start in itertools.chain(
            range(low, total - length + 2), range(min(low - 1, total - length + 1), warm - 1, -1)
        ):
            steps = range(start, start + length)
            if not any(step in steps for step in taken):
                return steps
    raise AssertionError("one step that isn't taken is there")
