"""A published table and our measurements, side by side. The hardware differs, so only ratios are compared."""

from __future__ import annotations

from collections.abc import Sequence

from launcher import units
from launcher.compare.paired import MeasuredArm, ratio_cell
from launcher.plan.model import Published, PublishedArm
from launcher.report import sections
from launcher.report.document import Bar, Bars, Cell, Prose, Section, numeric, text
from launcher.report.read import Evidence

TITLE = "Comparison with published figures"


def published(table: Published, compared: Sequence[MeasuredArm]) -> Section:
    """The published table next to ours."""
    pairs = list(zip(table.arms, compared, strict=False))
    first = table.arms[0] if table.arms else PublishedArm()
    timed = any(row.step_seconds for row, _ in pairs)
    hardware = next((_hardware(arm.evidence) for arm in compared if arm.evidence.has_result), "unknown hardware")
    columns: list[tuple[str, list[Cell], bool]] = [
        ("arm", [text(arm.label) for _, arm in pairs], False),
        ("published ratio", [_multiple(_gain(row, first, arm, compared[0])) for row, arm in pairs], True),
        ("our ratio", [ratio_cell(arm, control=number == 0) for number, (_, arm) in enumerate(pairs)], True),
        ("published samples/s", [_exactly(row.rate) for row, _ in pairs], True),
        ("our samples/s", [numeric(arm.figures.rate, units.number(arm.figures.rate)) for _, arm in pairs], True),
        ("published s/step", [_exactly(row.step_seconds) for row, _ in pairs], True),
        ("our s/step", [_rounded(_seconds(arm.figures.batch if timed else None, arm)) for _, arm in pairs], True),
        ("published s/epoch", [_exactly(row.epoch_seconds) for row, _ in pairs], True),
        ("our s/epoch", [_rounded(_seconds(table.epoch_samples, arm)) for _, arm in pairs], True),
        ("published GB", [_exactly(row.memory_gb) for row, _ in pairs], True),
        ("our GB", [_rounded(arm.figures.memory / 1e9 if arm.figures.memory else None) for _, arm in pairs], True),
        ("published loss", [_exactly(row.loss) for row, _ in pairs], True),
        (
            "our loss",
            [_rounded(_loss(row, arm), 7) if any(e.loss for e, _ in pairs) else Cell(text="-") for row, arm in pairs],
            True,
        ),
        ("published accuracy", [_exactly(row.accuracy) for row, _ in pairs], True),
        ("our accuracy", [_rounded(_accuracy(arm)) for _, arm in pairs], True),
    ]
    prose = [Prose(text=f"Published: {table.source}, on {table.hardware}. Here: {hardware}.")]
    if table.note:
        prose.append(Prose(text=table.note))
    gains = [_gain(row, first, arm, compared[0]) for row, arm in pairs]
    if not any(gains):
        return Section(title=TITLE, parts=(*prose, sections.columns(columns)))
    bars = tuple(
        bar
        for number, (gain, (_, arm)) in enumerate(zip(gains, pairs, strict=True))
        for bar in (
            _ratio_bar(arm.label, "published", gain, number),
            _ratio_bar(arm.label, "measured", ratio_cell(arm, control=number == 0).value, number),
        )
    )
    chart = Bars(title="Throughput, as a multiple of the first arm's", bars=bars)
    return Section(title=TITLE, parts=(*prose, sections.columns(columns), chart))


def _gain(row: PublishedArm, first: PublishedArm, arm: MeasuredArm, control: MeasuredArm) -> float | None:
    """The published throughput over that of the first arm; of times for steps, by their batches."""
    if row.rate and first.rate:
        return row.rate / first.rate
    if row.epoch_seconds and first.epoch_seconds:
        return first.epoch_seconds / row.epoch_seconds
    if row.step_seconds and first.step_seconds and arm.figures.batch and control.figures.batch:
        return first.step_seconds / row.step_seconds * arm.figures.batch / control.figures.batch
    return None


def _seconds(samples: int | None, arm: MeasuredArm) -> float | None:
    """What the arm takes for so many samples."""
    return samples / arm.figures.rate if samples and arm.figures.rate else None


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


def _rounded(value: float | None, digits: int = 4) -> Cell:
    return numeric(value, units.number(value, digits))


def _ratio_bar(label: str, how: str, value: float | str | None, colour: int) -> Bar:
    known = value if isinstance(value, (int, float)) else None
    return Bar(
        label=f"{label}, {how}",
        value=known,
        text=f"not {how}" if known is None else f"{units.ratio(known)}x",
        colour=colour,
    )


def _hardware(evidence: Evidence) -> str:
    hardware = evidence.result.hardware
    return hardware.get("gpu") or hardware.get("cpu") or "unknown hardware"
