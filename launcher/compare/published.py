"""A published table and our measurements, side by side. The hardware differs, so only ratios are compared."""

from __future__ import annotations

from collections.abc import Sequence

from launcher import units
from launcher.compare.paired import MeasuredArm, ratio_cell
from launcher.compare.published_table import COLUMNS
from launcher.plan.model import Published, PublishedArm
from launcher.report import sections
from launcher.report.document import Cell, Prose, Section, numeric, text
from launcher.report.read import Evidence

TITLE = "Comparison with published figures"
_ALWAYS = ("rate", "memory_gb", "accuracy")
"""What is shown of ours also where it wasn't published."""


def published(table: Published, compared: Sequence[MeasuredArm]) -> Section:
    """The published table next to ours."""
    pairs = list(zip(table.arms, compared, strict=False))
    first = table.arms[0] if table.arms else PublishedArm()
    hardware = next((_hardware(arm.evidence) for arm in compared if arm.evidence.has_result), "unknown hardware")
    columns: list[sections.Column] = [
        ("arm", [text(arm.label) for _, arm in pairs], False),
        ("published ratio", [_multiple(_gain(row, first, arm, compared[0])) for row, arm in pairs], True),
        ("our ratio", [ratio_cell(arm, control=number == 0) for number, (_, arm) in enumerate(pairs)], True),
    ]
    for key, name in COLUMNS.items():
        figures = [getattr(row, key) for row, _ in pairs]
        columns.append((f"published {name}", [_exactly(figure) for figure in figures], True))
        if key in _ALWAYS or any(figures):
            digits = 7 if key == "loss" else 4
            ours = [_ours(key, row, arm, table.epoch_samples) for row, arm in pairs]
            columns.append((f"our {name}", [numeric(figure, units.number(figure, digits)) for figure in ours], True))
    prose = [Prose(text=f"Published: {table.source}, on {table.hardware}. Here: {hardware}.")]
    if table.note:
        prose.append(Prose(text=table.note))
    return Section(title=TITLE, parts=(*prose, sections.columns(columns)))


def _gain(row: PublishedArm, first: PublishedArm, arm: MeasuredArm, control: MeasuredArm) -> float | None:
    """The published throughput over that of the first arm; of times for steps, by their batches."""
    if row.rate and first.rate:
        return row.rate / first.rate
    if row.epoch_seconds and first.epoch_seconds:
        return first.epoch_seconds / row.epoch_seconds
    if row.step_seconds and first.step_seconds and arm.figures.batch and control.figures.batch:
        return first.step_seconds / row.step_seconds * arm.figures.batch / control.figures.batch
    return None


def _ours(key: str, row: PublishedArm, arm: MeasuredArm, epoch_samples: int | None) -> float | None:
    """What we measured of a published figure."""
    figures = arm.figures
    if key == "rate":
        return figures.rate
    if key == "memory_gb":
        return figures.memory / 1e9 if figures.memory else None
    if key == "loss":
        return _loss(row, arm)
    if key == "accuracy":
        return _accuracy(arm)
    samples = figures.batch if key == "step_seconds" else epoch_samples
    return samples / figures.rate if samples and figures.rate else None


def _loss(row: PublishedArm, arm: MeasuredArm) -> float | None:
    """Our loss at the published step, else the last loss. None where our run has fewer steps."""
    if row.loss_step is None:
        return arm.figures.loss
    rows = arm.evidence.metrics
    # Of many steps the curve has means over neighbours, whose step is none of theirs.
    return dict(rows.loss.points()).get(row.loss_step) if rows else None


def _accuracy(arm: MeasuredArm) -> float | None:
    """Of the test images, as published ones are, where there are such; else of what was held out."""
    test = arm.evidence.result.eval.get("test_accuracy")
    return arm.figures.accuracy if test is None else test


def _exactly(value: float | None) -> Cell:
    """With all digits that were published."""
    return numeric(value, f"{value or 0:.10g}")


def _multiple(value: float | None) -> Cell:
    return numeric(value, units.ratio(value))


def _hardware(evidence: Evidence) -> str:
    hardware = evidence.result.hardware
    return hardware.get("gpu") or hardware.get("cpu") or "unknown hardware"
