"""What a tracker takes of a run: settings, tags, verdict, and scalars by step."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.metrics import EVENT_KEYS, RATES
from amp_launcher.shown import show
from amp_launcher.typed import leaves
from launcher import admit, units
from launcher.report.read import Evidence, group_of
from launcher.runs import follow, store
from launcher.script import telemetry

SETTING = bool | int | float | str
LONGEST = 250
"""Characters of a name or a tag; MLflow takes no more of a name."""
MOST = 1000
"""Settings, and scalars of a row."""
_SAME = ("loss", "lr", "epoch", "grad_norm", "loss_scale", "memory_bytes", *(name for name, _ in RATES))
_ROW = {
    **{name: f"train/{name}" for name in _SAME},
    "skipped_total": "train/skipped_steps",
    "seconds": "train/step_seconds",
}
"""Names in a row of metrics.jsonl, and those that trackers get."""


class Point(NamedTuple):
    """Scalars of one step."""

    step: int
    time: float
    """Seconds since 1970."""
    values: dict[str, float]


class Content(NamedTuple):
    """A run, but for its scalars."""

    id: str
    """Of the run; of an arm of a comparison, with the arm's number."""
    label: str
    group: str | None
    """The sweep or comparison that it is of."""
    settings: Mapping[str, SETTING]
    """By dotted keys, without those that are null."""
    tags: Mapping[str, str]
    state: str
    verdict: str
    """Of the proof, with the reason; empty before there is one."""
    started: float | None
    ended: float | None
    """Seconds since 1970; None while it runs."""
    attempt: int
    variables: tuple[str, ...]
    """Names of those that the job was given, by `env.` and `secrets.`."""


def describe(evidence: Evidence, group: str | None) -> Content:
    """The run as its folder says now."""
    plan, result, state = evidence.plan, evidence.result, evidence.state
    observed = result.observed
    document = evidence.documents.get("plan.json", {})
    settings = _flat(group_of(document, "settings"))
    tags = {
        "amp": plan.settings.amp.level,
        "recipe": plan.script.file if plan.script else plan.recipe,
        "framework": plan.framework,
        "mechanism": result.mechanism or plan.mechanism,
        "dtype": observed.dtype,
        "verdict": observed.verdict,
        "words": " ".join(plan.words),
        "name": plan.name,
        "commit": evidence.provenance.script.commit or evidence.provenance.code.commit,
        "state": state.name,
    }
    # Without what is short for a group of keys here, as `amp` is.
    swept = {key: value for key, value in plan.swept if not any(name.startswith(f"{key}.") for name in settings)}
    return Content(
        id=f"{group}-{evidence.run.id}" if evidence.run.folder.parent.name == store.ARMS else evidence.run.id,
        label=admit.clean(evidence.label)[:LONGEST],
        group=group,
        settings={**settings, **_flat(swept)},
        tags={key: admit.clean(str(value))[:LONGEST] for key, value in tags.items() if value},
        state=state.name,
        verdict=admit.clean(": ".join(filter(None, (observed.verdict, observed.why)))),
        started=units.seconds_of(state.started),
        ended=(units.seconds_of(state.ended) or 0.0) if state.finished else None,
        attempt=state.attempt,
        variables=(*group_of(document, "env"), *group_of(document, "secrets"))[:MOST],
    )


def _flat(values: Mapping[str, Any]) -> dict[str, SETTING]:
    return {
        admit.clean(key)[:LONGEST]: value if isinstance(value, (bool, int, float)) else admit.clean(show(value))
        for key, value in list(leaves(values).items())[:MOST]
        if value is not None
    }


class Scalars:
    """The scalars of a run's folder that each call has not given yet, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = follow.Lines(folder / "metrics.jsonl")
        self._times, self._steps = array("d"), array("q")

    def new(self) -> Iterator[Point]:
        """What metrics.jsonl has gained. A file that was cut back, as by `resume`, is given from its start."""
        afresh, lines = self._lines.read()
        if afresh:
            self._times, self._steps = array("d"), array("q")
        for line in lines:
            point = _point(line)
            if point is None:
                continue
            self._times.append(point.time)
            self._steps.append(point.step)
            if point.values:
                yield point

    def of_devices(self) -> Iterator[Point]:
        """All that GPUs and hosts did, each sample at the step that had ended last before it."""
        sampled = telemetry.read(self._folder)
        for series in (*sampled.gpus, *sampled.hosts):
            place = f"system/node{series.node}/{series.device.replace(' ', '')}"
            known = telemetry.HOST_UNITS if series.device == "host" else telemetry.GPU_UNITS
            names = {name: f"{place}_{name}_{unit.replace('%', 'percent')}" for name, unit in known.items()}
            for index, time in enumerate(series.times):
                at = bisect_right(self._times, time)
                read = ((names[name], column[index]) for name, column in series.values.items() if name in names)
                values = {name: value for name, value in read if value is not None and math.isfinite(value)}
                yield Point(self._steps[at - 1] if at else 0, time, values)

    def at_end(self, evidence: Evidence) -> Point:
        """The figures of the result, at the last step."""
        result = evidence.result
        figures = {
            "final/throughput": result.throughput.mean,
            "final/peak_memory_bytes": result.peak_memory_bytes,
            "final/half_flop_share": result.observed.half_flop_share,
            "final/skipped_steps": result.loss_scale.skipped_steps,
            "final/wall_seconds": result.wall_seconds,
            **{f"final/eval_{name}": value for name, value in result.eval.items()},
        }
        values = {name[:LONGEST]: float(value) for name, value in figures.items() if value is not None}
        return Point(self._steps[-1] if self._steps else 0, self._times[-1] if self._times else 0.0, values)


def _point(line: bytes) -> Point | None:
    """None for a line that has no step, is damaged, or is another event than an evaluation."""
    try:
        row = json.loads(line)
        step, time = admit.whole(row["step"], "step"), admit.number(row["time"], "time")
        if "event" in row:
            named = [(f"eval/{name}", row[name]) for name in row if name not in EVENT_KEYS]
            found = named if row["event"] == "eval" else []
        else:
            found = [(_ROW[name], value) for name, value in row.items() if name in _ROW]
            found += [(f"train/loss_{name}", value) for name, value in (row.get("losses") or {}).items()]
            found += list((row.get("logged") or {}).items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    values = {admit.clean(str(name))[:LONGEST]: value for name, value in found[:MOST] if _is_number(value)}
    return Point(step, time, values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
