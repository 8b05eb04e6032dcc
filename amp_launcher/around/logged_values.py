"""Values that a user's script logs, joined with the rows of its counted steps.

A script may log before its step or after it, several times in one step, or once in many steps. Samples that are logged
once in many steps belong to all the steps since the previous log.
"""

from __future__ import annotations

from amp_launcher.around.attempt_rows import Row
from amp_launcher.job.logged import Logged
from amp_launcher.loop.divergence import Detector

ROW_KEYS = ("lr", "grad_norm")
"""Keys of a recipe's rows that a script may log too."""


class LoggedValues:
    """The log of one attempt, joined row by row. The owner of the rows reports each new one with `row_added`."""

    def __init__(self, detector: Detector | None) -> None:
        """`detector` checks the logged losses."""
        self.last_step: int | None = None
        """The script's own number of the step that it logged last; None until it logs one."""
        self._detector = detector
        self._early: Logged | None = None
        """Logged before its step was counted."""
        self._in_newest_row = False
        """Whether the newest row has logged values."""
        self._stretch = _Stretch()
        """The steps since the last row with logged values."""

    @property
    def any(self) -> bool:
        """Whether the script has logged a step."""
        return self.last_step is not None

    @property
    def is_kept(self) -> bool:
        """Whether values of a step that is still to come are kept."""
        return self._early is not None

    def belongs_to_newest_row(self, step: int) -> bool:
        """Whether values of this step are for the newest row; otherwise they are for a step that is still to come."""
        return step == self.last_step or not self._in_newest_row

    def row_added(self, steps: int, seconds: float | None, timed: bool) -> None:
        """A new row covers so many steps, each of which took `seconds`."""
        if self._in_newest_row:
            self._stretch = _Stretch()
        self._in_newest_row = False
        self._stretch.add(steps, seconds, timed)

    def keep(self, logged: Logged) -> None:
        """Keep the values of a step that is still to come."""
        self._early = combined(self._early, logged)

    def take_kept(self) -> Logged | None:
        """The kept values, which are no longer kept then."""
        kept, self._early = self._early, None
        return kept

    def join(self, row: Row, logged: Logged) -> None:
        """Add values to the newest row. Raises `Diverged` where the loss is NaN or Inf for good."""
        self.last_step = logged.step
        if logged.loss is not None:
            row["loss"] = logged.loss
        if logged.losses:
            row["losses"] = {**row.get("losses", {}), **logged.losses}
        if logged.samples is not None:
            self._stretch.samples += logged.samples
            row["samples_per_second"] = self._stretch.rate
        row.update({name: value for name, value in logged.more.items() if name in ROW_KEYS})
        if "epoch" in logged.more:
            row["epoch"] = int(logged.more["epoch"])
        others = {name: value for name, value in logged.more.items() if name not in (*ROW_KEYS, "epoch", "accuracy")}
        if others:
            row["logged"] = {**row.get("logged", {}), **others}
        is_first, self._in_newest_row = not self._in_newest_row, True
        if self._detector is not None and is_first and not logged.by_library:
            # A fused optimizer on a GPU may have skipped the step unseen, whose gradients overflowed.
            self._detector.check_rows([{**row, "grad_norm": None}])


def combined(before: Logged | None, after: Logged) -> Logged:
    """The values logged for several micro-batches of one step: the sum of samples, the last of other values."""
    if before is None:
        return after
    samples = None if before.samples is None and after.samples is None else (before.samples or 0) + (after.samples or 0)
    return Logged(
        step=after.step,
        loss=before.loss if after.loss is None else after.loss,
        losses={**before.losses, **after.losses},
        samples=samples,
        more={**before.more, **after.more},
        by_library=after.by_library,
    )


class _Stretch:
    """Steps whose samples are logged together."""

    __slots__ = ("_all", "_timed", "samples")

    def __init__(self) -> None:
        self.samples = 0.0
        self._all: tuple[int, float | None] = 0, 0.0
        """Steps and their seconds; None where the time of a step is unknown."""
        self._timed = 0, 0.0

    def add(self, steps: int, seconds: float | None, timed: bool) -> None:
        """`seconds` is the time of one step."""
        count, total = self._all
        self._all = count + steps, None if total is None or seconds is None else total + steps * seconds
        if timed and seconds is not None:
            self._timed = self._timed[0] + steps, self._timed[1] + steps * seconds

    @property
    def rate(self) -> float | None:
        """Samples per second, over the timed steps if there are any. Each step counts with the average of samples."""
        count, total = self._timed if self._timed[0] else self._all
        return self.samples / self._all[0] * count / total if total else None
