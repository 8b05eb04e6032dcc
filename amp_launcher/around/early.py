"""Judges a user's script while it runs. A contradiction at its first observed steps ends it; later ones never do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_launcher.loop import proof
from amp_launcher.precision import verdict
from amp_launcher.precision.findings import CONTRADICTED, EMULATED, PROVED, UNKNOWN, Finding
from amp_launcher.precision.operators import ignoring
from amp_launcher.run_folder import RunFolder
from amp_launcher.settings import Settings

_FAULTS = {
    CONTRADICTED: "is not applied",
    EMULATED: "is emulated",
    UNKNOWN: "can't be proved",
}
_OWN = " (a mode that the script applies itself is amp=MODE train.precision=script)"
_NOT_ON = (
    " (with train.precision=script the script applies the mode, and it applied none: switch it on by the script's own "
    "argument; where that has no effect on this device, as in libraries that know GPUs alone, leave out "
    "train.precision=script, and if that is contradicted too, say amp=o0)"
)
MOST_WARNINGS = 5
"""The most reasons that are printed while a script runs; the result has the others."""


class NotProved(BaseException):
    """Ends a script at its first observed steps. Not an `Exception`, which many scripts catch and log."""


class EarlyVerdict:
    """The verdict on one rank of a script while it runs."""

    def __init__(self, settings: Settings, rank: int, *, resumed: bool, run: Path | None = None) -> None:
        """`resumed` says that an earlier attempt trained already; `run` is the run folder."""
        self.reason = ""
        """Why the script was ended; empty if it was not."""
        self.observed: dict[str, Any] = {}
        """result.json's "observed" at that moment."""
        self.ask_to_stop = RunFolder(path=run, attempt=0).ask_to_stop if run else lambda: None
        """Asks all ranks of the run to save and stop."""
        self.advice: Callable[[], str] = lambda: _OWN if self._is_asked_for_float32() else ""
        """What to do about a contradiction, for the end of a sentence; empty where nothing is known."""
        self.stops = False
        """Whether that was asked, because of a contradiction."""
        self._settings = settings
        self._rank = rank
        self._may_end = not resumed
        self._known: set[Finding] = set()
        self._warnings = 0

    def judge(self, reports: Sequence[dict[str, Any]]) -> None:
        """Judge all reports of this rank so far. Raises `NotProved` for the first of them if it fails the run; warns of
        later reasons, and of those that don't fail it."""
        level, share, first = self._settings.amp.level, self._settings.proof.share, self._may_end
        self._may_end = False
        reports = ignoring(reports, self._settings.proof.ignore)
        findings = verdict.findings_of_rank(reports, share)
        kind, why = verdict.conclude(reports, findings)
        if kind == PROVED:
            return
        if first and self._settings.require_proof is not False and self._fails(kind):
            advice = self._advice_by_dtypes(reports) or self.advice()
            self.reason = f"{proof.problem(level, True, kind, why)}{advice}; so the script was ended"
            self.observed = {**verdict.observed(reports, share=share), "verdict": kind, "why": why}
            raise NotProved(self.reason)
        for finding in dict.fromkeys(findings):
            if finding not in self._known:
                self._known.add(finding)
                self._warn(*finding)

    def warn(self, why: str) -> None:
        """Warn of a reason why nothing will be proved that does not end the script: it can't be ended from a thread."""
        self._warn(UNKNOWN, why)

    def _advice_by_dtypes(self, reports: Sequence[dict[str, Any]]) -> str:
        """What to do where the script's products are in the other half-precision dtype than the one asked for, or where
        it was to apply one and applied none."""
        halves = {"float16", "bfloat16"}
        dtypes = {call["dtype"] for report in reports for call in report.get("calls", ())}
        ran = halves & dtypes
        if dtypes and not ran and self._settings.amp.level != "o0" and self._settings.train.precision == "script":
            return _NOT_ON
        if not ran or halves - ran != {reports[0]["rule"]["dtype"]}:
            return ""
        by_script = "" if self._settings.train.precision == "script" else " train.precision=script"
        return f" (say amp.dtype={ran.pop()}{by_script}, which the script computes in)"

    def _is_asked_for_float32(self) -> bool:
        return self._settings.amp.level == "o0" and self._settings.train.precision != "script"

    def _fails(self, kind: str) -> bool:
        return kind == CONTRADICTED or self._settings.proof_required

    def _warn(self, kind: str, why: str) -> None:
        if kind == CONTRADICTED and self._settings.proof.stop and not self.stops:
            self.stops = True
            self.ask_to_stop()
        self._warnings += 1
        if self._rank or self._warnings > MOST_WARNINGS:
            return
        if self.stops and kind == CONTRADICTED:
            effect = "so it is asked to save and stop (proof.stop=true), and the run fails"
        elif kind == CONTRADICTED:
            effect = "it continues, and the run fails at its end (proof.stop=true would stop it)"
        elif self._fails(kind):
            effect = "it continues, and the run fails at its end (require_proof=true)"
        else:
            effect = "it continues, and ends without a proof"
        print(f"script: warning: amp={self._settings.amp.level} {_FAULTS[kind]}: {why}; {effect}", file=sys.stderr)
