"""The protocols that a framework implements for `loop.training`, besides `world.device.Device`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.loop.progress import Progress
from amp_launcher.precision.step_outcome import StepOutcome

Evaluate = Callable[[], Mapping[str, float]]
"""The held-out measures by name, `accuracy` and `loss` among them, the same on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """Results of an execution of one or more steps: scalars, or vectors of one value a step, on the device."""

    loss: Any
    """Mean over this rank's samples; or several losses by name, whose sum is the step's."""
    lr: Any
    """A number, or a value on the device."""
    outcome: StepOutcome
    waited: float | None = None
    """Seconds that this rank waited for data; None where all data is on the device."""
    prepared: bool = False
    """Whether it included compilation: then its time is not the speed of a step."""


class State(Protocol):
    """Everything that a run's steps change, saved and restored."""

    def save(self, folder: Path, progress: Progress, check: Callable[[], None]) -> Path | None:
        """Write a checkpoint of all ranks on rank 0, and return its path there. `check` is `checkpoint.save`'s.
        Collective."""

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        """Restore the newest intact checkpoint, if there is one; return its progress and its path. Collective.

        Raises `SettingsError` for the checkpoint of another job.
        """

    def machine(self) -> dict[str, Any]:
        """Facts that must be equal for another process to repeat this one's arithmetic."""

    def digests(self) -> dict[str, bytes]:
        """A digest of each tensor of this rank, by name."""

    def saved_digests(self, saved: Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        """The digests of a saved state as rank 0 would have them, and the progress saved with it."""


class Observer(Protocol):
    """Observes what single steps compute."""

    reports: list[dict[str, Any]]
    """One for each step observed on this rank."""

    def step(self, number: int, *, evaluation: bool = False) -> AbstractContextManager[None]:
        """Around the execution that step `number` is part of, or around the `evaluation` after it."""


class Executor(Protocol):
    """Runs optimizer steps: one at a time, or several in one execution."""

    at_once: int
    """The maximum number of steps of one execution."""

    def shares(self, order: Any, epoch: int) -> Any:
        """This rank's samples of an epoch, in the order of `amp_launcher.loop.sampling.order`, step by step."""

    def execute(self, shares: Any, first: int, count: int) -> Executed:
        """Run `count` steps from `first` on, counted from 0 in their epoch."""
