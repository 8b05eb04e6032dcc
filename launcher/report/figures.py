"""The figures of one run that reports set side by side, from its result, or from its metrics where it left none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.report.read import Evidence, inner
from launcher.ui import summary


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """None is not known."""

    mode: str
    """Level, and the dtype that it became."""
    mechanism: str
    batch: int | None
    rate: float | None
    """Samples a second."""
    memory: int | None
    """Bytes; the most of all attempts, of which each is a process of its own."""
    loss: float | None
    """At the last step; None also where that was no number, or infinite."""
    lost: bool
    """Whether it was."""
    accuracy: float | None
    skipped: int | None
    half_share: float | None
    """Of the matrix operations observed, what ran in half precision."""
    verdict: str
    outcome: str
    """How the run ended, with the reason where it did not end well."""


def figures(evidence: Evidence) -> Figures:
    plan, result, rows = evidence.plan, evidence.result, evidence.metrics
    asked, became = inner(plan, "settings"), inner(result, "effective")
    level = became.get("amp") or inner(asked, "amp").get("level") or ""
    dtype = became.get("dtype") or ""
    rate = _number(inner(result, "throughput").get("mean"))
    return Figures(
        mode=f"{level} {dtype}".strip(),
        mechanism=str(result.get("mechanism") or plan.get("mechanism") or ""),
        batch=_count(became.get("batch")) or _count(asked.get("batch")),
        rate=rate if rate is not None or rows is None else rows.rate,
        memory=max(_count(result.get("peak_memory_bytes")) or 0, (rows and rows.peak_memory) or 0) or None,
        loss=_number(inner(result, "loss").get("last")) if result else (rows.last_loss if rows else None),
        lost="loss.last" in (result.get("nonfinite") or ()) if result else bool(rows and rows.steps and rows.lost),
        accuracy=_number(inner(result, "eval").get("accuracy")),
        skipped=_whole(inner(result, "loss_scale").get("skipped_steps"))
        if result
        else (rows.skipped if rows else None),
        half_share=_number(inner(result, "observed").get("half_flop_share")),
        verdict=summary.verdict_of(result),
        outcome=_outcome(evidence),
    )


def _outcome(evidence: Evidence) -> str:
    state = evidence.state
    said = f"{state.name}: {state.reason}" if state.reason else state.name
    steps = f"{evidence.metrics.last_step} steps" if evidence.metrics and evidence.metrics.steps else ""
    if evidence.result or (state.name == "queued" and not steps):
        return said
    return f"{said} (no result{f', {steps}' if steps else ''})"


def _count(value: Any) -> int | None:
    """A whole number above zero."""
    return _whole(value) or None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
