"""Curves of what runs did step by step and second by second; those of one run in one colour throughout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from launcher.report.document import COLOURS, Curves, Line, Part
from launcher.report.metrics import POINTS, Changes, Curve, Metrics
from launcher.report.read import Evidence
from launcher.script.telemetry import Series

TOGETHER = 6000
"""Points of the grey curves in one chart, so that the page of many runs stays small."""
FEWEST = 60
"""Points of a grey curve, however many there are."""
BINS = 40
"""Of the step times between their 1st and 99th percentile."""
Points = tuple[tuple[float, float], ...]
TIME_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on, the seconds in one, and its name."""


def charts(evidence: Sequence[Evidence]) -> Iterator[Part]:
    """Curves of the steps, those of one run in one colour throughout."""
    read = [(run.colour, run.label, run.metrics) for run in evidence if run.metrics is not None]

    def by_step(title: str, y: str, points: Iterable[Points]) -> Iterator[Curves]:
        lines = (Line(label=run[1], colour=run[0], points=own) for run, own in zip(read, points, strict=True))
        return _curves(title, "step", y, lines)

    metrics = [rows for _, _, rows in read]
    losses = (
        Line(label=_finite(label, rows), colour=colour, points=rows.loss.points()) for colour, label, rows in read
    )
    yield from _curves("Loss", "step", "loss", losses)
    for name in dict.fromkeys(name for rows in metrics for name in rows.named):
        yield from by_step(f"Loss of the {name}", "loss", [_points(rows.named.get(name)) for rows in metrics])
    for name in dict.fromkeys(name for rows in metrics for name in rows.logged):
        yield from by_step(name, name, [_points(rows.logged.get(name)) for rows in metrics])
    yield from by_step("Held-out accuracy", "accuracy", map(_evaluations, metrics))
    scales = tuple(
        Line(label=_skips(label, rows), colour=colour, points=points, marks=tuple(map(float, rows.overflows)))
        for colour, label, rows in read
        if (points := rows.scale.points())
    )
    if scales:
        marked = any(line.marks for line in scales)
        note = "marks below the curves are steps that overflowed and were skipped" if marked else ""
        drawn = _thinned(scales, steps=True)
        yield Curves(title="Loss scale", x="step", y="scale", lines=drawn, steps=True, unit="log2", note=note)
    yield from by_step("Gradient norm", "norm", [rows.norm.points() for rows in metrics])
    yield from _step_times([(colour, label, rows.seconds) for colour, label, rows in read if len(rows.seconds) > 1])
    yield from over_time(evidence)


def _points(curve: Curve | None) -> Points:
    return curve.points() if curve else ()


def _evaluations(rows: Metrics) -> Points:
    """The held-out accuracies; one alone is no curve."""
    return tuple((float(step), value) for step, value in rows.evaluations) if len(rows.evaluations) > 1 else ()


def _finite(label: str, rows: Metrics) -> str:
    return label if rows.nonfinite_at is None else f"{label} (not finite from step {rows.nonfinite_at})"


def _skips(label: str, rows: Metrics) -> str:
    return f"{label} ({rows.skipped} skipped)" if rows.skipped else label


def over_time(evidence: Sequence[Evidence]) -> Iterator[Curves]:
    """What the GPUs and hosts did, by the time since each run's first sample."""
    seconds, unit_of_time = _time_unit(evidence)
    for kind, title, name, unit in (
        ("gpus", "GPU memory", "memory", "MiB"),
        ("gpus", "GPU utilisation", "utilization", "%"),
        ("gpus", "GPU power", "power", "W"),
        ("hosts", "Processors of the host", "cpu", "%"),
        ("hosts", "Memory of the host", "memory", "MiB"),
    ):
        lines = [
            line
            for run in evidence
            for line in _sampled(run.label, run.colour, getattr(run.telemetry, kind), name, len(evidence) == 1)
        ]
        in_bytes = unit == "MiB"
        factor = 2**20 if in_bytes else 1
        scaled = tuple(
            dataclasses.replace(line, points=tuple((x / seconds, y * factor) for x, y in line.points)) for line in lines
        )
        scale = {"MiB": "bytes", "%": "percent"}.get(unit, "zero")
        yield from _curves(title, unit_of_time, "in use" if in_bytes else unit, scaled, scale)


def _time_unit(evidence: Sequence[Evidence]) -> tuple[float, str]:
    """In which unit the longest of these runs is easily read, and its seconds."""
    series = [samples for run in evidence for samples in (*run.telemetry.gpus, *run.telemetry.hosts) if samples.times]
    longest = max((samples.times[-1] - samples.times[0] for samples in series), default=0.0)
    return next((seconds, name) for least, seconds, name in TIME_UNITS if longest >= least)


def _sampled(label: str, colour: int | None, series: Sequence[Series], name: str, alone: bool) -> Iterator[Line]:
    """One line for each device of a run, over all its attempts: in colours of their own where the run is `alone`, else
    every other one dashed."""
    devices: dict[tuple[int, str], Curve] = {}
    began = min((samples.times[0] for samples in series if samples.times), default=0.0)
    for samples in series:
        curve = devices.setdefault((samples.node, samples.device), Curve())
        for time, value in zip(samples.times, samples.values.get(name, ()), strict=False):
            if value is not None:
                curve.add(time - began, value)
    nodes = len({node for node, _ in devices}) > 1
    for number, ((node, device), curve) in enumerate(devices.items()):
        place = " ".join([*([f"node {node}"] if nodes else []), *([device] if len(devices) > 1 else [])])
        if points := curve.points():
            own = number if alone else None if colour is None else colour + COLOURS * (number % 2)
            yield Line(label=f"{label} {place}".rstrip(), colour=own, points=points)


def _curves(title: str, x: str, y: str, lines: Iterable[Line], unit: str = "") -> Iterator[Curves]:
    drawn = _thinned(tuple(line for line in lines if line.points))
    if drawn:
        yield Curves(title=title, x=x, y=y, lines=drawn, unit=unit)


def _thinned(lines: tuple[Line, ...], steps: bool = False) -> tuple[Line, ...]:
    """The grey ones with fewer points where there are many."""
    limit = max(FEWEST, min(POINTS, TOGETHER // max(1, len(lines))))
    return tuple(_thin(line, limit, steps) if line.colour is None else line for line in lines)


def _thin(line: Line, limit: int, steps: bool) -> Line:
    curve: Curve | Changes = Changes(limit) if steps else Curve(limit)
    for x, y in line.points:
        curve.add(x, y)
    return dataclasses.replace(line, points=curve.points(), marks=())


def _step_times(times: Sequence[tuple[int | None, str, Sequence[float]]]) -> Iterator[Curves]:
    """How the timed steps' times are spread: the share of each run's steps in bins of equal width."""
    ordered = [sorted(values) for _, _, values in times]
    if not ordered:
        return
    low = min(values_of_run[len(values_of_run) // 100] for values_of_run in ordered)
    high = max(values_of_run[-1 - len(values_of_run) // 100] for values_of_run in ordered)
    if not 0 < low < high:
        return
    width = (high - low) / BINS
    lines = []
    for (colour, label, _), values in zip(times, ordered, strict=True):
        counts = [0] * BINS
        for value in values:
            if low <= value <= high:
                counts[min(BINS - 1, int((value - low) / width))] += 1
        points = tuple(((low + n * width) * 1000, 100 * count / len(values)) for n, count in enumerate(counts))
        lines.append(Line(label=label, colour=colour, points=(*points, (high * 1000, points[-1][1]))))
    note = "timed steps between the 1st and 99th percentile"
    yield Curves(title="Step time", x="milliseconds", y="% of steps", lines=tuple(lines), steps=True, note=note)
