"""Which steps the next execution runs, and what is due after them: an epoch's end, a checkpoint, a planned stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amp_launcher import metrics
from amp_launcher.loop import sampling
from amp_launcher.loop.attempt import Attempt
from amp_launcher.settings import Settings


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of one execution, which are of one epoch."""

    first: int
    """Counted from 1."""
    count: int
    epoch: int
    within: int
    """Steps of the epoch before them."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Spans:
    """The spans of an attempt."""

    def __init__(self, settings: Settings, attempt: Attempt) -> None:
        self._attempt, self._seed = attempt, settings.seed
        self._save_every, self._stop_every = settings.checkpoint.every, settings.checkpoint.stop_every
        self._kernels = settings.profile.tool == "none"
        first = attempt.first
        self._warm = first + metrics.warm_up(_up_to(self._stop_every, first, attempt.last - first))

    def after(self, done: int, most: int) -> Span:
        """At most so many steps: up to the epoch's end, the next checkpoint, the planned stop or the attempt's end."""
        epoch, within = divmod(done, self._attempt.steps_per_epoch)
        count = min(most, self._attempt.steps_per_epoch - within, self._attempt.last - done)
        count = _up_to(self._stop_every, done, _up_to(self._save_every, done, count))
        return Span(done + 1, count, epoch, within)

    def order(self, done: int) -> Any:
        """The samples of the epoch that the next step is in."""
        return sampling.order(self._seed, done // self._attempt.steps_per_epoch, self._attempt.samples)

    def is_timed(self, span: Span) -> bool:
        """Whether the steps before it have warmed up the device."""
        return span.first > self._warm

    def shows_kernels(self, span: Span) -> bool:
        """Whether it is the last of the warm-up, in which the GPU's kernels are recorded."""
        return self._kernels and span.first <= self._warm <= span.last

    def ends_epoch(self, done: int) -> bool:
        return done % self._attempt.steps_per_epoch == 0 or done == self._attempt.total

    def is_saved(self, done: int) -> bool:
        return done == self._attempt.last or _every(self._save_every, done)

    def is_stop(self, done: int) -> bool:
        return done < self._attempt.last and _every(self._stop_every, done)


def _up_to(every: int, done: int, count: int) -> int:
    """`count` steps, or those up to the next multiple."""
    return min(count, every - done % every) if every else count


def _every(steps: int, done: int) -> bool:
    return bool(steps) and done % steps == 0
