"""Judges one observed step by its level's rule: the dtypes of parameters and of gradients' sums over ranks, and the
rounding of float32 products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amp_launcher.precision.call_summary import is_half, percent
from amp_launcher.precision.findings import Finding, Report, contradicted, unknown
from amp_launcher.precision.levels import ENOUGH

EXACT_SWITCHES = ("none", "ieee", "highest", "False", "unreadable")
"""Settings that leave float32 products exact; where one is unreadable, the arithmetic shows."""
RECURRENT_SWITCHES = ("torch.backends.cudnn.rnn.fp32_precision", "torch.backends.cudnn.allow_tf32")
"""The switch of cuDNN's recurrent layers, of torch from 2.9 and before."""
PROBE_SIZES = {"cpu": 128, "cuda": 1024}
"""Rows of the square matrices whose products show how float32 is rounded, by device. A GPU may use no matrix units for
smaller ones."""

_CAST = (
    " (amp=o3 is for a model in half precision; a module that casts its weights to the dtype of its inputs, as some "
    "losses do, needs inputs.float())"
)


def parameters(report: Report) -> Iterator[Finding]:
    rule = report["rule"]
    level, half = rule["level"], rule["dtype"]
    if not report["parameters"] and not report.get("grows"):
        yield unknown("the model has no floating-point parameters")
    names = {"norm": "parameters of norms", "kept": "parameters kept in float32"}
    for entry in report["parameters"]:
        masters = level == "o2" and rule["masters"] and rule.get("parallel") == "fsdp"
        by_level = computes_in_float32(entry, rule) or masters
        in_float32 = entry["group"] == "kept" or rule.get("float32_parameters", by_level)
        expected = "float32" if in_float32 else half
        if level != "o0" and entry["group"] in ("adapter", "frozen"):
            continue  # what the optimizer steps is float32, and the rest stays as it was loaded
        if entry["dtype"] != expected and not (level == "o0" and entry["dtype"] == "float64"):
            what = names.get(entry["group"], "parameters")
            advice = " (amp=o0 leaves float64 as it is)" if entry["dtype"] == "float64" else ""
            advice = _CAST if level == "o1" and is_half(entry["dtype"]) else advice
            such_as = f", such as those of module {module}" if (module := entry.get("module")) else ""
            found = f"{entry['elements']} {what} are {entry['dtype']}"
            yield contradicted(f"{found}{such_as}, but {level} makes them {expected}{advice}")


def computes_in_float32(entry: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether the level computes with these of the report's `parameters` in float32."""
    norm = entry["group"] == "norm" and rule["level"] == "o2"
    return norm or entry["group"] == "kept" or rule["level"] in ("o0", "o1")


def reduction(report: Report) -> Iterator[Finding]:
    """Gradients that step float32 weights are summed over the ranks in float32."""
    rule, reduced = report["rule"], report["reduced"]
    if rule["level"] == "o3" or (rule["level"] == "o2" and not rule["masters"]):
        return
    narrow = {dtype: elements for dtype, elements in reduced.items() if is_half(dtype)}
    if sum(narrow.values()) > (1 - ENOUGH) * sum(reduced.values()):
        yield contradicted(
            f"{percent(sum(narrow.values()), sum(reduced.values()))} of the gradients were summed over the ranks in "
            f"{' and '.join(sorted(narrow))}, but {rule['level']} does that in float32: give precision.prepare the "
            "model as DDP wraps it, FSDP reduce_dtype=torch.float32, and DeepSpeed communication_data_type fp32"
        )


def loss_scale(report: Report) -> Iterator[Finding]:
    """At o1 float16 gradients have a loss scale, which is taken out of them before the optimizer's step."""
    rule = report["rule"]
    half = any(call["backward"] and call["dtype"] == "float16" for call in report["calls"])
    if (
        half
        and rule["level"] == "o1"
        and rule.get("scaled")
        and report["optimizer"]
        and not report.get("unscaled", True)
    ):
        yield unknown(
            "backward ran in float16, and no loss scale was seen: torch.amp.GradScaler shows one, loss_scale=none says "
            "that none is meant"
        )


def float32(report: Report) -> Iterator[Finding]:
    """Whether float32 products were float32. At o0 not even a switch may allow them to be rounded, unless the switches
    are a script's own."""
    rule, observed = report["rule"], report["float32"]
    rounded = {name: dtype for name, dtype in observed["arithmetic"].items() if dtype != "float32"}
    if rule["tf32"] is not False:
        if rule["tf32"] and rule["level"] == "o0" and observed["arithmetic"] and "tf32" not in rounded.values():
            yield contradicted("tf32=true, but float32 products were not rounded to TF32")
        rounded = {name: dtype for name, dtype in rounded.items() if dtype != "tf32"}
    if rounded:
        named = ", ".join(f"{name} to {dtype}" for name, dtype in sorted(rounded.items()))
        yield contradicted(f"float32 products are rounded: {named}")
    if rule["level"] == "o0" and rule["tf32"] is False:
        for name, setting in sorted(observed["switches"].items()):
            if setting not in EXACT_SWITCHES:
                yield contradicted(f"{name}={setting} allows o0's float32 products to be rounded")
