"""Reports of observed steps as an honest observer writes them, for tests that change one thing."""

from __future__ import annotations

from amp_launcher.precision import verdict
from amp_launcher.precision.levels import ENOUGH


def call(backward, dtype="bfloat16", flops=100, **other):
    names = {"operation": "mm", "functions": ["linear"], "backward": backward, "dtype": dtype, "flops": flops}
    return {**names, "kept": False, "compiled": False, "device": "cpu", "calls": 1, **other}


def both(dtype="bfloat16", flops=100, **other):
    """The same call forward and backward."""
    return [call(backward, dtype, flops, **other) for backward in (False, True)]


def listed(function, *dtypes):
    return {"function": function, "dtypes": list(dtypes), "calls": 1}


def report(level="o1", *, rule=None, **changes):
    """An honest report of that level, with these keys changed, and these of its rule."""
    dtype = "float32" if level == "o0" else "bfloat16"
    parameters = [{"group": "other", "dtype": "bfloat16" if level in ("o2", "o3") else "float32", "elements": 10}]
    if level == "o2":
        parameters.append({"group": "norm", "dtype": "float32", "elements": 2})
    of_level = {"level": level, "dtype": dtype, "masters": level == "o2", "tf32": False, "device": "cpu"}
    return {
        "rank": 0,
        "world_size": 1,
        "step": 1,
        "rule": {**of_level, "allow": [], "deny": [], "keep_fp32": [], **(rule or {})},
        "calls": both(dtype),
        "listed": [],
        "unseen": [],
        "unaccounted": {},
        "audit": "",
        "parameters": parameters,
        "optimizer": {"bfloat16" if level == "o3" else "float32": 10},
        "reduced": {},
        "float32": {"switches": {}, "arithmetic": {}},
        "xla_clusters": None,
        "problems": [],
        **changes,
    }


def judged(*reports, planned=(), share=ENOUGH):
    return verdict.judge(reports, planned, share)


def expect(expected, reason, *reports, **options):
    """Fail unless the reports are judged so, for a reason with these words."""
    kind, why = judged(*reports, **options)
    assert kind == expected and reason in why, f"{kind}: {why}"
