"""Judges parameters in shards (parallel=fsdp) in observed steps: that there are shards, what is gathered from them for
computing, how gradients are reduced into them, and the optimizer's state of them.

The dtype of the shards themselves is that of the report's `parameters`, in `value_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_launcher.precision.call_summary import is_half, percent
from amp_launcher.precision.findings import Finding, Report, contradicted, unknown
from amp_launcher.precision.levels import ENOUGH
from amp_launcher.precision.value_rules import computes_in_float32

MOST_GATHERS = 2
"""How often a parameter is gathered where another is gathered once: in forward and in backward, where the other stays
gathered in between."""


def findings(report: Report) -> Iterator[Finding]:
    """Findings of one step on one rank, where its rule is that of shards."""
    rule = report["rule"]
    if rule.get("parallel") != "fsdp" or report.get("evaluation") or report["problems"]:
        return
    total = sum(entry["elements"] for entry in report["parameters"])
    sharded = report["shards"]["of"]
    if sharded < total:
        yield contradicted(f"parallel=fsdp, but {total - sharded} of {total} parameters are not in shards")
    if rule["level"] != "o3" and not (rule["level"] == "o2" and not rule["masters"]):
        narrow = {dtype: count for dtype, count in report["optimizer_state"].items() if is_half(dtype)}
        for dtype, count in sorted(narrow.items()):
            yield contradicted(
                f"{count} elements of the optimizer's state are {dtype}, but {rule['level']} has float32"
            )
    if report["world_size"] == 1:
        return  # nothing is gathered from other ranks, and nothing summed over them
    if not report["reduced"]:
        yield unknown("no sum of gradients over the ranks was seen")
    yield from _gathered(report)


def across_ranks(reports: Sequence[Report]) -> Iterator[Finding]:
    """Findings of one step, from the reports of all ranks: together their shards are the model."""
    shards = [report["shards"] for report in reports if report["rule"].get("parallel") == "fsdp"]
    held = sum(shard["elements"] for shard in shards)
    if shards and held != shards[0]["of"]:
        yield contradicted(
            f"step {reports[0]['step']}: the ranks hold {held} elements of parameters, and the model has "
            f"{shards[0]['of']}: it is not sharded over them"
        )


def _gathered(report: Report) -> Iterator[Finding]:
    """Parameters that are computed with in half precision are gathered in it, and the others in float32."""
    rule, gathered = report["rule"], report["gathered"]
    if not gathered:
        yield unknown("parameters are in shards, and no gathering of them was seen")
        return
    level, half = rule["level"], rule["dtype"]
    wide = sum(entry["elements"] for entry in report["parameters"] if computes_in_float32(entry, rule))
    narrow = sum(entry["elements"] for entry in report["parameters"]) - wide
    total, in_half, in_float32 = sum(gathered.values()), gathered.get(half, 0), gathered.get("float32", 0)
    others = sorted(set(gathered) - {half, "float32"})
    if others:
        yield contradicted(f"parameters were gathered in {' and '.join(others)}, but {level} computes in {half}")
    if level == "o0":
        return
    if narrow and in_float32 - MOST_GATHERS * wide / narrow * in_half > (1 - ENOUGH) * total:
        yield contradicted(
            f"{percent(in_float32, total)} of what was gathered of the parameters was float32, but {level} computes "
            f"with {narrow} of {wide + narrow} in {half}"
        )
    if wide and in_float32 * MOST_GATHERS * max(narrow, 1) < ENOUGH * wide * in_half:
        yield contradicted(
            f"{in_float32} elements were gathered in float32 and {in_half} in {half}, but {level} computes with {wide} "
            f"of {wide + narrow} in float32"
        )


def summary(reports: Sequence[Report]) -> str:
    """The dtypes of shards and of what was gathered from them, for the verdict; empty where nothing is in shards, or in
    the end no longer is."""
    report = reports[-1]
    if report["rule"].get("parallel") != "fsdp":
        return ""
    sharded = [report["step"] for report in reports if report["rule"].get("parallel") == "fsdp"]
    since = f" from step {min(sharded)} on" if len(sharded) < len(reports) else ""
    shards = _dtypes({entry["dtype"]: 1 for entry in report["parameters"]})
    gathered = f", gathered in {_dtypes(report['gathered'])}" if report["gathered"] else ""
    return f"parameters in shards of {shards}{gathered}{since}"


def _dtypes(counts: Mapping[str, int]) -> str:
    return " and ".join(sorted(counts, key=lambda dtype: -counts[dtype]))
