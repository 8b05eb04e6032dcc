"""Curves of what runs did step by step and second by second; those of one run in one colour throughout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcher.report.document import COLOURS, Curves, Line, Part
from launcher.report.metrics import Curve
from launcher.report.read import Evidence
from launcher.telemetry import Series

BINS = 40
"""Of the step times between their 1st and 99th percentile."""


def charts(evidence: Sequence[Evidence]) -> Iterator[Part]:
    """Curves of the steps, those of one run in one colour throughout."""
    read = [(index, each.label, each.metrics) for index, each in enumerate(evidence) if each.metrics is not None]
    losses = tuple(
        Line(
            label=label if rows.nonfinite_at is None else f"{label} (not finite from step {rows.nonfinite_at})",
            colour=index,
            points=rows.loss.points(),
        )
        for index, label, rows in read
        if rows.steps
    )
    yield from _curves("Loss", "step", "loss", losses)
    for name in dict.fromkeys(name for _, _, rows in read for name in rows.named):
        parts = tuple(
            Line(label=label, colour=index, points=rows.named[name].points())
            for index, label, rows in read
            if name in rows.named
        )
        yield from _curves(f"Loss of the {name}", "step", "loss", parts)
    held_out = tuple(
        Line(label=label, colour=index, points=tuple((float(step), value) for step, value in rows.evaluations))
        for index, label, rows in read
        if len(rows.evaluations) > 1
    )
    yield from _curves("Held-out accuracy", "step", "accuracy", held_out)
    scales = tuple(
        Line(label=_skips(label, rows.skipped), colour=index, points=rows.scale.points(), marks=_floats(rows.overflows))
        for index, label, rows in read
        if rows.scale.points()
    )
    if scales:
        note = (
            "marks below the curves are steps that overflowed and were skipped" if any(s.marks for s in scales) else ""
        )
        yield Curves(title="Loss scale", x="step", y="scale", lines=scales, steps=True, unit="log2", note=note)
    norms = tuple(Line(label=label, colour=index, points=rows.norm.points()) for index, label, rows in read)
    yield from _curves("Gradient norm", "step", "norm", norms)
    times = [(index, label, rows.seconds) for index, label, rows in read if len(rows.seconds) > 1]
    yield from _step_times(times)
    yield from over_time(evidence)


def over_time(evidence: Sequence[Evidence]) -> Iterator[Curves]:
    """What the GPUs and hosts did, by seconds since each run's first sample."""
    for kind, title, name, unit in (
        ("gpus", "GPU memory", "memory", "MiB"),
        ("gpus", "GPU utilisation", "utilization", "%"),
        ("gpus", "GPU power", "power", "W"),
        ("hosts", "Processors of the host", "cpu", "%"),
        ("hosts", "Memory of the host", "memory", "MiB"),
    ):
        lines = [
            line
            for index, each in enumerate(evidence)
            for line in _sampled(each.label, index, getattr(each.telemetry, kind), name, len(evidence) == 1)
        ]
        in_bytes = unit == "MiB"
        scaled = tuple(
            Line(label=each.label, colour=each.colour, points=tuple((x, y * 2**20) for x, y in each.points))
            if in_bytes
            else each
            for each in lines
        )
        scale = {"MiB": "bytes", "%": "percent"}.get(unit, "zero")
        yield from _curves(title, "seconds", "in use" if in_bytes else unit, scaled, scale)


def _sampled(label: str, colour: int, series: Sequence[Series], name: str, alone: bool) -> Iterator[Line]:
    """One line for each device of a run, over all its attempts: in colours of their own where the run is `alone`, else
    every other one dashed."""
    devices: dict[tuple[int, str], Curve] = {}
    began = min((each.times[0] for each in series if each.times), default=0.0)
    for each in series:
        curve = devices.setdefault((each.node, each.device), Curve())
        for time, value in zip(each.times, each.values.get(name, ()), strict=False):
            if value is not None:
                curve.add(time - began, value)
    nodes = len({node for node, _ in devices}) > 1
    for number, ((node, device), curve) in enumerate(devices.items()):
        place = " ".join([*([f"node {node}"] if nodes else []), *([device] if len(devices) > 1 else [])])
        if points := curve.points():
            own = number if alone else colour + COLOURS * (number % 2)
            yield Line(label=f"{label} {place}".rstrip(), colour=own, points=points)


def _curves(title: str, x: str, y: str, lines: Iterable[Line], unit: str = "") -> Iterator[Curves]:
    drawn = tuple(each for each in lines if each.points)
    if drawn:
        yield Curves(title=title, x=x, y=y, lines=drawn, unit=unit)


def _skips(label: str, skipped: int) -> str:
    return f"{label} ({skipped} skipped)" if skipped else label


def _floats(values: Iterable[int]) -> tuple[float, ...]:
    return tuple(float(each) for each in values)


def _step_times(times: Sequence[tuple[int, str, Sequence[float]]]) -> Iterator[Curves]:
    """How the timed steps' times are spread: the share of each run's steps in bins of equal width."""
    ordered = [sorted(values) for _, _, values in times]
    if not ordered:
        return
    low = min(each[len(each) // 100] for each in ordered)
    high = max(each[-1 - len(each) // 100] for each in ordered)
    if not 0 < low < high:
        return
    width = (high - low) / BINS
    lines = []
    for (index, label, _), values in zip(times, ordered, strict=True):
        counts = [0] * BINS
        for value in values:
            if low <= value <= high:
                counts[min(BINS - 1, int((value - low) / width))] += 1
        points = tuple(((low + n * width) * 1000, 100 * count / len(values)) for n, count in enumerate(counts))
        lines.append(Line(label=label, colour=index, points=(*points, (high * 1000, points[-1][1]))))
    note = "timed steps between the 1st and 99th percentile"
    yield Curves(title="Step time", x="milliseconds", y="% of steps", lines=tuple(lines), steps=True, note=note)
