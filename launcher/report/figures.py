"""The figures of one run that reports compare, from its result, or from its metrics where there is no result."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.report.read import Evidence
from launcher.runs.decode import decode
from launcher.runs.schema import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """None is unknown."""

    mode: str
    """Level, and the dtype that it became."""
    mechanism: str
    batch: int | None
    rate: float | None
    """In `unit`."""
    unit: str
    memory: int | None
    """Bytes; the maximum over all attempts, each of which is a process of its own."""
    loss: float | None
    """At the last step; None also if that was NaN or infinite."""
    nonfinite: bool
    """Whether the last loss was NaN or infinite."""
    accuracy: float | None
    skipped: int | None
    half_share: float | None
    """Share of the observed matrix operations that ran in half precision."""
    verdict: str
    outcome: str
    """How the run ended, with the reason where it did not end well."""


def figures(evidence: Evidence) -> Figures:
    plan, result, rows, measured = evidence.plan, evidence.result, evidence.metrics, evidence.has_result
    mode, rate = decode(Mode, result.effective)[0], result.throughput.mean
    return Figures(
        mode=f"{mode.amp or plan.settings.amp.level or ''} {mode.dtype or ''}".strip(),
        mechanism=result.mechanism or plan.mechanism or "",
        batch=mode.batch or plan.settings.batch or None,
        rate=rate if rate is not None or rows is None else rows.rate,
        unit=(result.throughput.unit if rate is not None or rows is None else rows.unit) or "samples/s",
        memory=max(result.peak_memory_bytes or 0, (rows and rows.peak_memory) or 0) or None,
        loss=result.loss.last if measured else (rows.last_loss if rows else None),
        nonfinite="loss.last" in result.nonfinite if measured else bool(rows and rows.steps and rows.last_nonfinite),
        accuracy=result.eval.get("accuracy"),
        skipped=result.loss_scale.skipped_steps if measured else (rows.skipped if rows else None),
        half_share=result.observed.half_flop_share,
        verdict=result.observed.verdict or "",
        outcome=_outcome(evidence),
    )


def _outcome(evidence: Evidence) -> str:
    state = evidence.state
    outcome = f"{state.name}: {state.reason}" if state.reason else state.name
    steps = f"{evidence.metrics.last_step} steps" if evidence.metrics and evidence.metrics.steps else ""
    if evidence.has_result or (state.name == "queued" and not steps):
        return outcome
    return f"{outcome} (no result{f', {steps}' if steps else ''})"
