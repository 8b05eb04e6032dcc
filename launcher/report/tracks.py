"""Curves of what runs did: of one run all by time, of several the steps by number, so that they can be compared."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from launcher.report.document import COLOURS, Curves, Line
from launcher.report.metrics import POINTS, Changes, Curve, Metrics
from launcher.report.read import Evidence
from launcher.script.telemetry import Series

TOGETHER = 6000
"""Points of the grey curves in one chart, so that the page of many runs stays small."""
FEWEST = 60
"""Points of a grey curve, however many there are."""
TIME_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on, the seconds in one, and its name."""
FIRST = ("Loss", "Throughput", "Loss scale", "Memory", "GPU memory", "GPU utilisation")
"""What is looked at first of one run."""
Points = tuple[tuple[float, float], ...]


def charts(evidence: Sequence[Evidence]) -> list[Curves]:
    """Curves of steps and of telemetry; those over the same quantity have the same x axis."""
    alone = len(evidence) == 1
    if alone:
        evidence = [dataclasses.replace(evidence[0], label="")]  # its curves need no name
    drawn = [*_by_step(evidence), *over_time(evidence)]
    if alone and (rows := evidence[0].metrics) and (clock := rows.clock.points()):
        timed = _timed(clock, _began(evidence[0]), *_time_unit(evidence))
        drawn = [timed(chart) if chart.x == "step" else chart for chart in drawn]
        drawn.sort(key=lambda chart: FIRST.index(chart.title) if chart.title in FIRST else len(FIRST))
    return _aligned(drawn)


def _by_step(evidence: Sequence[Evidence]) -> Iterator[Curves]:
    read = [(run.colour, run.label, run.metrics) for run in evidence if run.metrics is not None]

    def of_all(title: str, y: str, points: Iterable[Points], unit: str = "") -> Iterator[Curves]:
        lines = (Line(label=run[1], colour=run[0], points=own) for run, own in zip(read, points, strict=True))
        return _curves(title, "step", y, lines, unit)

    metrics = [rows for _, _, rows in read]
    losses = (
        Line(label=_finite(label, rows), colour=colour, points=rows.loss.points()) for colour, label, rows in read
    )
    yield from _curves("Loss", "step", "loss", losses)
    speeds = {rows.unit for rows in metrics if rows.unit}
    if len(speeds) == 1:
        yield from of_all("Throughput", speeds.pop(), [rows.speed.points() for rows in metrics], "zero")
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
    if len(read) == 1:
        yield from of_all("Memory", "the most so far", [rows.memory.points() for rows in metrics], "bytes")
    for name in dict.fromkeys(name for rows in metrics for name in rows.named):
        yield from of_all(f"Loss of the {name}", "loss", [_points(rows.named.get(name)) for rows in metrics])
    for name in dict.fromkeys(name for rows in metrics for name in rows.logged):
        yield from of_all(name, name, [_points(rows.logged.get(name)) for rows in metrics])
    yield from of_all("Held-out accuracy", "accuracy", map(_evaluations, metrics))
    yield from of_all("Gradient norm", "norm", [rows.norm.points() for rows in metrics])


def _timed(clock: Points, began: float, seconds: float, unit: str) -> Callable[[Curves], Curves]:
    """How a chart by step becomes one by time, on the straight lines between the clock's points."""

    def time(step: float) -> float:
        after = min(max(1, bisect_left(clock, (step,))), len(clock) - 1)
        (one, then), (other, later) = clock[max(0, after - 1)], clock[after]
        return (then + (later - then) * (step - one) / ((other - one) or 1.0) - began) / seconds

    def moved(line: Line) -> Line:
        points = tuple((time(x), y) for x, y in line.points)
        return dataclasses.replace(line, points=points, marks=tuple(map(time, line.marks)))

    return lambda chart: dataclasses.replace(chart, x=unit, lines=tuple(map(moved, chart.lines)))


def _aligned(charts: Sequence[Curves]) -> list[Curves]:
    places: dict[str, list[float]] = {}
    for chart in charts:
        own = places.setdefault(chart.x, [] if chart.x == "step" else [0.0])
        own += [line.points[end][0] for line in chart.lines for end in (0, -1)]
    return [dataclasses.replace(chart, span=(min(places[chart.x]), max(places[chart.x]))) for chart in charts]


def _points(curve: Curve | None) -> Points:
    return curve.points() if curve else ()


def _evaluations(rows: Metrics) -> Points:
    """The held-out accuracies; one alone is no curve."""
    return tuple((float(step), value) for step, value in rows.evaluations) if len(rows.evaluations) > 1 else ()


def _finite(label: str, rows: Metrics) -> str:
    return label if rows.nonfinite_at is None else f"{label} (not finite from step {rows.nonfinite_at})".lstrip()


def _skips(label: str, rows: Metrics) -> str:
    return f"{label} ({rows.skipped} skipped)".lstrip() if rows.skipped else label


def over_time(evidence: Sequence[Evidence]) -> Iterator[Curves]:
    """What the GPUs and hosts did, by the time since each run's first step or sample."""
    seconds, unit_of_time = _time_unit(evidence)
    for kind, title, name, unit in (
        ("gpus", "GPU memory", "memory", "MiB"),
        ("gpus", "GPU utilisation", "utilization", "%"),
        ("gpus", "GPU power", "power", "W"),
        ("hosts", "Processors of the host", "cpu", "%"),
        ("hosts", "Memory of the host", "memory", "MiB"),
    ):
        lines = [
            line for run in evidence for line in _sampled(run, getattr(run.telemetry, kind), name, len(evidence) == 1)
        ]
        in_bytes = unit == "MiB"
        factor = 2**20 if in_bytes else 1
        scaled = tuple(
            dataclasses.replace(line, points=tuple((x / seconds, y * factor) for x, y in line.points)) for line in lines
        )
        scale = {"MiB": "bytes", "%": "percent"}.get(unit, "zero")
        yield from _curves(title, unit_of_time, "in use" if in_bytes else unit, scaled, scale)


def _time_unit(evidence: Sequence[Evidence]) -> tuple[float, str]:
    """The seconds in the unit in which the longest of these runs is easily read, and its name."""
    longest = max((time - _began(run) for run in evidence for time in _ends(run)), default=0.0)
    return next((seconds, name) for least, seconds, name in TIME_UNITS if longest >= least)


def _ends(run: Evidence) -> list[float]:
    """When its steps and samples began and ended."""
    clock = run.metrics.clock.points() if run.metrics else ()
    sampled = [samples.times for samples in (*run.telemetry.gpus, *run.telemetry.hosts) if samples.times]
    return [*(clock[end][1] for end in (0, -1) if clock), *(times[end] for times in sampled for end in (0, -1))]


def _began(run: Evidence) -> float:
    return min(_ends(run), default=0.0)


def _sampled(run: Evidence, series: Sequence[Series], name: str, alone: bool) -> Iterator[Line]:
    """One line for each device of a run, over all its attempts: in colours of their own where the run is `alone`, else
    every other one dashed."""
    devices: dict[tuple[int, str], Curve] = {}
    began, colour = _began(run), run.colour
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
            yield Line(label=f"{run.label} {place}".strip(), colour=own, points=points)


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
