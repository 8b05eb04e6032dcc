"""The framework's part of `amp_launcher.around.wrap`: precision and observation around a user's own script."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from amp_launcher.arguments import Arguments
from amp_launcher.around import script
from amp_launcher.around.early import EarlyVerdict
from amp_launcher.around.rank_reports import Reports
from amp_launcher.around.script_source import Source
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.loop.divergence import Detector
from amp_launcher.loop.profiling import Profiling
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.world.device import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The wrapper's arguments."""

    chosen: Arguments
    file: Path
    """The script's text, absolute: in the snapshot where there is one."""
    named: str
    """The script's name for itself, as `python NAMED` would have it."""
    root: str
    """Folder of the checkout where that is here, and the script runs from a snapshot of it; else empty."""
    workdir: Path
    inputs: Mapping[str, str]
    """Links in `workdir`: name -> path."""
    arguments: tuple[str, ...]
    source: Source


class Observer(Protocol):
    """Observes a script while it trains."""

    precision: Any
    """The precision that reports name as requested; the script's own, once it has made one."""
    reports: list[dict[str, Any]]
    judge: Callable[[Sequence[dict[str, Any]]], None]
    """Called with all reports after each span of observed steps; an exception from it ends the script."""
    warn: Callable[[str], None]
    """Called with a reason why nothing will be proved, as an error in the observer."""

    def conclude(self) -> None:
        """The script ends its process within a call: an observed step that is over counts."""


class Wrapper(ABC):
    """Applies precision around a script where that is possible, and observes the script."""

    device: Device
    mode: ResolvedPrecision
    own: bool
    """The script applies its precision itself, by setting or by its text."""
    precision: Any
    """The `Precision` that the script is checked against: the wrapper's, until the script makes its own."""
    observer: Observer
    profiling: Profiling | None = None
    """The profiler of some steps, where the framework has one."""
    has_own_precision: bool = False
    """Whether the script has made a `Precision`."""
    early: EarlyVerdict

    def __init__(self, started: Started, kind: str, capability: tuple[int, int] | None) -> None:
        """`kind` is cpu or cuda. Raises `SettingsError` where nothing can apply the mode."""
        settings = started.chosen.settings
        self.own = script.by_script(settings.train, started.source)
        self.mode = script.resolve(settings, started.source, device=kind, capability=capability, environ=os.environ)

    @abstractmethod
    def around(self, meter: StepMeter) -> AbstractContextManager[None]:
        """A context for the script, in which its optimizer steps are reported to the meter."""

    @abstractmethod
    def give_way(self) -> None:
        """Undo what is applied around the script."""

    def notice(self, made: Any) -> None:
        """The script has made its own precision: give way to it."""
        self.give_way()
        self.has_own_precision = True
        self.precision = self.observer.precision = made

    def tell_early(self, early: EarlyVerdict) -> None:
        """Let the observed steps be judged while the script runs."""
        self.early = early
        self.observer.judge, self.observer.warn = early.judge, early.warn

    def conclude(self) -> None:
        """The script ends its process within a call."""
        self.observer.conclude()

    def detector(self, level: str) -> Detector:
        """Checks the losses and the loss scale of a script at this level."""
        mode = self.mode
        return Detector(level=level, mechanism=mode.mechanism, dtype=mode.dtype, scale=mode.loss_scale)

    def reports(self) -> list[dict[str, Any]]:
        """The reports (`amp_launcher.precision.observation`) of this rank, once the script has ended."""
        return self.observer.reports

    def reports_of_ranks(self, patience: float) -> Reports | None:
        """What the ranks that the script started itself have reported, which are awaited for so many seconds; None
        where it started none that is observed."""
        return None

    def mechanism(self) -> str:
        """The mechanism of the level, as far as it was observed."""
        if self.has_own_precision:
            resolved: ResolvedPrecision = self.precision.resolved
            return resolved.mechanism
        return "script" if self.own else self.mode.mechanism

    def skipped_unseen(self) -> int:
        """Steps of the counted optimizer that were skipped and reported to the meter as applied."""
        return 0

    def unseen(self) -> str:
        """Why no step was seen, for the end of a sentence that says so."""
        return ""

    def instead(self, error: BaseException) -> str:
        """Advice on an error that ended the script; empty where nothing is known."""
        return script.instead(error)

    def trained_nothing(self) -> bool:
        """Whether it is known that this process took no step, rather than that none was seen."""
        return False

    def profile(self) -> dict[str, Any]:
        """result.json's "profile"."""
        return self.profiling.record if self.profiling else {}
