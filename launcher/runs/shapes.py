"""What the files of a run's folder may hold: what is of another type is left out on reading, and can be named.

Folders are read by screens that have to tell what they can: a file that was damaged, or written by another version,
costs what is wrong in it and nothing else. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT, WHOLE, NUMBER = "text", "a whole number", "a number"
PAIRS = "pairs of a name and a value"

Shape = str | list[Any] | dict[str, Any]
"""One of the words above; a list of one shape, which each element has; or the shapes of an object's values by name,
where `*` is that of every other name. Names that are not listed may hold anything; null fits everywhere."""

LARGEST = 1e300
"""No quantity of a run comes near it, and sums of smaller ones are finite."""

_PROCESS: Shape = {"host": TEXT, "boot": TEXT, "pid": WHOLE, "start": WHOLE}
_RATES = ("mean", "median", "p10", "p90", "data_share", "warmup_steps", "steps")

STATUS: Shape = {
    **dict.fromkeys(("state", "started", "ended", "reason"), TEXT),
    **dict.fromkeys(("attempt", "exit_code", "before"), WHOLE),
    "process": _PROCESS,
}
SUBMISSION: Shape = {
    **dict.fromkeys(("queue", "host", "submitted", "sweep", "answer"), TEXT),
    "first_attempt": WHOLE,
    "process": _PROCESS,
}
STOPPED: Shape = {"step": WHOLE, "why": TEXT}
FAILED: Shape = {"reason": TEXT, "trace": TEXT, "rank": WHOLE}
PLAN: Shape = {
    **dict.fromkeys(("name", "recipe", "framework", "mechanism", "queue", "host", "run_root", "code"), TEXT),
    "words": [TEXT],
    "swept": PAIRS,
    "arms": [{"arm": TEXT, "swept": PAIRS}],
    "settings": {"amp": {"level": TEXT, "dtype": TEXT}, "batch": WHOLE, "data": {"name": TEXT}},
    "script": {"file": TEXT, "arguments": [TEXT]},
    "container": {"kind": TEXT, "image": TEXT, "runtime": {}},
    "comparison": {},
    "published": {},
}
RESULT: Shape = {
    **dict.fromkeys(("status", "reason", "framework", "recipe", "mechanism", "determinism"), TEXT),
    **dict.fromkeys(("attempts", "peak_memory_bytes", "epochs", "steps", "world_size"), WHOLE),
    "wall_seconds": NUMBER,
    "nonfinite": [TEXT],
    "requested": {},
    "effective": {"amp": TEXT, "dtype": TEXT, "batch": WHOLE},
    "observed": {
        **dict.fromkeys(("verdict", "why", "dtype", "device"), TEXT),
        "half_flop_share": NUMBER,
        "param_dtypes": {"*": WHOLE},
    },
    "throughput": {"unit": TEXT, **dict.fromkeys(_RATES, NUMBER)},
    "loss": {"first": NUMBER, "last": NUMBER},
    "eval": {"*": NUMBER},
    "loss_scale": {"final": NUMBER, "skipped_steps": WHOLE},
    "updates": {"*": WHOLE},
    "profile": {
        **dict.fromkeys(("tool", "trace"), TEXT),
        "steps": [WHOLE],
        "instead_of": [WHOLE],
        **dict.fromkeys(("seconds", "tensor_core_share"), NUMBER),
    },
    "versions": {"*": TEXT},
    "digests": {"*": TEXT},
    "hardware": {"*": TEXT},
    "comparison": {"verdict": TEXT},
}
PROVENANCE: Shape = {
    **dict.fromkeys(("created", "host"), TEXT),
    "command": [TEXT],
    "code": dict.fromkeys(("digest", "commit"), TEXT),
}
OF_FILE: Mapping[str, Shape] = {
    "status.json": STATUS,
    "submission.json": SUBMISSION,
    "stopped.json": STOPPED,
    "failed.json": FAILED,
    "plan.json": PLAN,
    "result.json": RESULT,
    "provenance.json": PROVENANCE,
}

ROW: Shape = {
    "event": TEXT,
    **dict.fromkeys(("attempt", "step", "total_steps", "epoch", "epochs", "resumed_from", "skipped_total"), WHOLE),
    **dict.fromkeys(("loss", "lr", "seconds", "samples_per_second", "loss_scale", "grad_norm"), NUMBER),
    **dict.fromkeys(("memory_bytes", "time", "accuracy"), NUMBER),
    "nonfinite": [TEXT],
}
"""One row of metrics.jsonl."""


def fitting(values: Mapping[str, Any], shape: Shape) -> tuple[dict[str, Any], list[str]]:
    """The values without those of another shape, and what was left out: where it stood, and what should stand there."""
    if _fits(values, shape):  # as nearly all do
        return dict(values), []
    wrong: list[str] = []
    return _object(values, shape, "", wrong), wrong


def _object(values: Mapping[str, Any], shape: Any, place: str, wrong: list[str]) -> dict[str, Any]:
    found = dict(values)
    others = shape.get("*")
    for key in values if others else shape.keys() & values.keys():
        value, wanted = values[key], shape.get(key, others)
        if value is None:
            continue
        if isinstance(wanted, dict) and isinstance(value, dict):
            if wanted:
                found[key] = _object(value, wanted, f"{place}{key}.", wrong)
        elif isinstance(wanted, list) and isinstance(value, list):
            if not all(_fits(each, wanted[0]) for each in value):
                wrong.append(f"{place}{key} holds what is not {_called(wanted[0])}")
                del found[key]
        elif not _fits(value, wanted):
            wrong.append(f"{place}{key} is not {_called(wanted)}")
            del found[key]
    return found


def _fits(value: Any, shape: Shape) -> bool:
    if shape == TEXT:
        return isinstance(value, str)
    if shape in (WHOLE, NUMBER):
        whole = isinstance(value, int) and not isinstance(value, bool)
        # NaN is in no range.
        return (whole or (shape == NUMBER and isinstance(value, float))) and -LARGEST < value < LARGEST
    if shape == PAIRS:
        return isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        others = shape.get("*")
        for key, inner in value.items():
            wanted = shape.get(key, others)
            # The type itself first: of most values that is all there is to ask.
            if wanted is None or inner is None or (wanted is TEXT and type(inner) is str):
                continue
            if not _fits(inner, wanted):
                return False
        return True
    return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)


def _called(shape: Shape) -> str:
    if isinstance(shape, str):
        return shape
    return "an object" if isinstance(shape, dict) else "a list"
