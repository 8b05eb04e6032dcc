"""The verdict on the observed steps of a run over all ranks, while it trains and at its end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_launcher.loop.protocols import Evaluate, Observer
from amp_launcher.precision import verdict
from amp_launcher.precision.findings import CONTRADICTED, EMULATED, PROVED, UNKNOWN
from amp_launcher.precision.operators import ignoring
from amp_launcher.settings import Settings
from amp_launcher.world.world import ProcessGroup


@dataclass(kw_only=True, slots=True)
class Proof:
    """The reports of all steps observed since the run began. Every method is collective."""

    settings: Settings
    group: ProcessGroup
    observer: Observer
    before: Sequence[dict[str, Any]]
    """The reports of earlier attempts."""
    planned: set[int]
    """The steps of this attempt to observe, of `choose_steps`."""
    say: Callable[[str], None]
    """Prints a line for people."""
    reported_unknown: bool = False

    def reports(self) -> list[dict[str, Any]]:
        """Those of all ranks."""
        by_rank = self.group.gather(self.observer.reports)
        seen = [*self.before, *(report for reports in by_rank for report in reports)]
        return ignoring(seen, self.settings.proof.ignore)

    def plans(self, first: int, count: int) -> list[int]:
        """Which of `count` steps from `first` on are to be observed."""
        return sorted(self.planned.intersection(range(first, first + count)))

    @contextlib.contextmanager
    def observing(self, steps: Sequence[int]) -> Iterator[None]:
        """Observe these steps of one execution."""
        with contextlib.ExitStack() as observed:
            for step in steps:
                observed.enter_context(self.observer.step(step))
            yield

    def judged(self, *, complete: bool) -> dict[str, Any]:
        """result.json's "observed". Of a `complete` attempt it is unknown if a planned step was not observed."""
        return verdict.observed(self.reports(), self.planned if complete else set(), self.settings.proof.share)

    def is_hopeless(self) -> bool:
        """Whether no later step can still prove the mode. Where no proof is required, that is printed once instead."""
        kind, why = self.group.broadcast(verdict.judge_so_far(self.reports(), self.settings.proof.share))
        if kind in (UNKNOWN, EMULATED) and not self.settings.proof_required:
            if not self.reported_unknown:
                self.say(f"no proof: {why} (require_proof=false lets that pass)")
            self.reported_unknown = True
            return False
        return kind != PROVED

    def evaluated(self, evaluate: Evaluate, step: int) -> Mapping[str, float]:
        """The held-out measures after this step. The first evaluation is observed where it alone may match an entry of
        the lists."""
        amp = self.settings.amp
        if amp.allow or amp.deny or amp.infer or amp.clear or amp.keep_fp32:
            reports = self.reports()
            open_entries = verdict.unmatched(reports) and not any(report.get("evaluation") for report in reports)
            if self.group.broadcast(bool(open_entries)):
                with self.observer.step(step, evaluation=True):
                    return evaluate()
        return evaluate()


def problem(level: str, required: bool, kind: str, why: str) -> str | None:
    """Why a verdict fails the run, in one sentence; None where it doesn't."""
    if kind == CONTRADICTED:
        return f"what ran was not amp={level}: {why}"
    if kind == EMULATED and required:
        return f"amp={level} was emulated: {why} (require_proof=false lets that pass)"
    if kind == UNKNOWN and required:
        return f"nothing proves that amp={level} ran: {why} (require_proof=false lets that pass)"
    return None


def choose_steps(total: int, seed: int, first: int = 1, profiled: range = range(0)) -> set[int]:
    """Steps to observe out of `first` to `total`, counted from 1: the first, the last, and one drawn by the seed. None
    of them is among the `profiled`, which come after the first."""
    if total < first:
        return set()
    drawn = random.Random(f"{seed} {first} {total}").randint(first, total)
    return {first, profiled[0] - 1 if drawn in profiled else drawn, total}
