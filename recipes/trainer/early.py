"""Judges a user's script at its first observed steps, and ends it where no later step can prove the mode."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from recipes.precision import verdict
from recipes.precision.findings import EMULATED
from recipes.settings import Settings

_FAULTS = {
    verdict.CONTRADICTED: "is not applied",
    EMULATED: "is emulated",
    verdict.UNKNOWN: "can't be proved",
}


class NotProved(BaseException):
    """Ends a script whose mode no later step can prove. Not an `Exception`, which many scripts catch and log."""


class EarlyVerdict:
    """The verdict on one rank of a script while it runs."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self.reason = ""
        """Why the script was ended; empty if it was not."""
        self.observed: dict[str, Any] = {}
        """result.json's "observed" at that moment."""
        self._settings = settings
        self._rank = rank
        self._warned: set[str] = set()

    def judge(self, reports: Sequence[dict[str, Any]]) -> None:
        """Judge all reports of this rank so far. Raises `NotProved` where a required proof has become impossible; warns
        once where no proof is required."""
        level, share = self._settings.amp.level, self._settings.proof.share
        kind, why = verdict.judge_so_far(reports, share, one_rank=True)
        if kind == verdict.PROVED:
            return
        if self._settings.require_proof:
            self.reason = f"{problem(level, True, kind, why)}; so the script was ended"
            self.observed = {**verdict.observed(reports, share=share), "verdict": kind, "why": why}
            raise NotProved(self.reason)
        if kind not in self._warned:
            self._warn(kind, why)
        self._warned.add(kind)

    def warn(self, why: str) -> None:
        """Warn of a reason why nothing will be proved that does not end the script: it can't be ended from a thread."""
        self._warn(verdict.UNKNOWN, why)

    def _warn(self, kind: str, why: str) -> None:
        if self._rank:
            return
        required = self._settings.require_proof
        effect = (
            "the run will fail at its end (require_proof=false lets that pass)"
            if required
            else "it continues (require_proof=false)"
        )
        print(f"script: warning: amp={self._settings.amp.level} {_FAULTS[kind]}: {why}; {effect}", file=sys.stderr)


def problem(level: str, required: bool, kind: str, why: str) -> str | None:
    """Why a verdict fails the run, in one sentence; None where it doesn't."""
    if kind == verdict.CONTRADICTED:
        return f"what ran was not amp={level}: {why}"
    if kind == EMULATED and required:
        return f"amp={level} was emulated: {why} (require_proof=false lets that pass)"
    if kind == verdict.UNKNOWN and required:
        return f"nothing proves that amp={level} ran: {why} (require_proof=false lets that pass)"
    return None
