"""A published table: in the plan of the comparison that repeats it, and next to our measurements, of which only ratios
are comparable, since the hardware differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from launcher import units
from launcher.compare.arm_ratios import MeasuredArm, ratios
from launcher.plan.model import Published, PublishedArm
from launcher.report.document import Prose, Section, numbers, of_columns, texts
from launcher.ui import summary, tables

COLUMNS = {
    "rate": "samples/s",
    "step_seconds": "s/step",
    "epoch_seconds": "s/epoch",
    "memory_gib": "GiB",
    "loss": "loss",
    "accuracy": "accuracy",
}
"""Figures of `PublishedArm`, and what their columns are called."""
_ALWAYS = ("rate", "memory_gib", "accuracy")
"""What is shown of ours also where it wasn't published."""


def shown(source: Published, labels: Sequence[str], width: int = 0) -> Iterator[str]:
    """What was published of each arm, and where; sentences in at most `width` columns (0: no limit)."""
    yield from tables.wrapped(f"published: {source.source}, on {source.hardware}. {source.note}".strip(), width)
    given = [key for key in COLUMNS if any(getattr(arm, key) is not None for arm in source.arms)]
    if not given:
        return
    rows = []
    for label, row in zip(labels, source.arms, strict=True):
        figures = (getattr(row, key) for key in given)
        rows.append([label, *("-" if figure is None else f"{figure:.10g}" for figure in figures)])
    yield from ("", *tables.table(["arm", *(COLUMNS[key] for key in given)], rows))


def measured(table: Published, compared: Sequence[MeasuredArm]) -> Section:
    """The published table next to ours."""
    pairs = list(zip(table.arms, compared, strict=False))
    first = table.arms[0] if table.arms else PublishedArm()
    hardware = next((summary.device_of(arm.evidence.result) for arm in compared if arm.evidence.has_result), "")
    ours = [arm for _, arm in pairs]
    columns = [
        texts("arm", [arm.label for arm in ours]),
        numbers("published ratio", [_gain(row, first, arm, compared[0]) for row, arm in pairs], units.ratio),
        *([ratios("our ratio", ours)] if ours else []),
    ]
    for key, name in COLUMNS.items():
        figures = [getattr(row, key) for row, _ in pairs]
        columns.append(numbers(f"published {name}", figures, "{:.10g}".format))  # with all digits
        if key in _ALWAYS or any(figures):
            digits = 7 if key == "loss" else 4
            ours_of = [_ours(key, row, arm, table.epoch_samples) for row, arm in pairs]
            columns.append(numbers(f"our {name}", ours_of, partial(units.number, digits=digits)))
    prose = [Prose(text=f"Published: {table.source}, on {table.hardware}. Here: {hardware or 'unknown hardware'}.")]
    if table.note:
        prose.append(Prose(text=table.note))
    return Section(title="Comparison with published figures", parts=(*prose, of_columns(columns)))


def _gain(row: PublishedArm, first: PublishedArm, arm: MeasuredArm, control: MeasuredArm) -> float | None:
    """The published throughput over the first arm's; step times are converted by batch size."""
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
    if key == "memory_gib":
        return figures.memory / 2**30 if figures.memory else None
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
    # A long curve holds means over neighbouring steps, at steps between them.
    return dict(rows.loss.points()).get(row.loss_step) if rows else None


def _accuracy(arm: MeasuredArm) -> float | None:
    """Accuracy on the test images, as published, if there are any; else on held-out data."""
    test = arm.evidence.result.eval.get("test_accuracy")
    return arm.figures.accuracy if test is None else test
