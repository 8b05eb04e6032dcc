"""Whether what ran is the requested precision: `proved`, `contradicted`, `emulated` or `unknown`, and why.

Judged are the reports (`amp_launcher.precision.observation`) of the observed steps of each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp_launcher.precision import gemm_rules, shard_rules
from amp_launcher.precision.call_summary import Call, describe, flops, is_apart, is_half, percent, phase, times
from amp_launcher.precision.findings import (
    CONTRADICTED,
    PROVED,
    UNKNOWN,
    WORST_FIRST,
    Finding,
    Report,
    contradicted,
    unknown,
)
from amp_launcher.precision.levels import ENOUGH
from amp_launcher.precision.step_rules import allowed_dtypes, findings_of, uncertain_functions
from amp_launcher.precision.value_rules import EXACT_SWITCHES, RECURRENT_SWITCHES

REASONS = 4
"""The most reasons that `why` gives."""


def observed(reports: Iterable[Report], planned: Iterable[int] = (), share: float = ENOUGH) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks; `planned` are steps that had to be observed, `share` is
    the setting `proof.share`."""
    reports = sorted(reports, key=lambda report: (report["step"], report["rank"]))
    verdict, why = judge(reports, planned, share)
    reports = _of_training(reports)
    work: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for call in _calls(reports):
        work[call["dtype"]] += call["flops"]
        devices[call["device"]] += call["flops"]
    last = reports[-1] if reports else None
    elements: Counter[str] = Counter()
    for entry in last["parameters"] if last else ():
        elements[entry["dtype"]] += entry["elements"]
    arithmetic = {dtype for report in reports for dtype in report["float32"]["arithmetic"].values()}
    half = sum(count for dtype, count in work.items() if is_half(dtype))
    return {
        "verdict": verdict,
        "why": why,
        "dtype": _most(work),
        "half_flop_share": round(half / work.total(), 6) if work.total() else None,
        "step_flops": max((_flops_of_step(report) for report in reports), default=None),
        "param_dtypes": dict(elements),
        "reduce_dtype": _dtype_of(reports, "reduced"),
        "gather_dtype": _dtype_of(reports, "gathered"),
        "state_dtype": _dtype_of(reports, "optimizer_state"),
        "tf32": ("tf32" in arithmetic) if arithmetic else None,
        "xla_clusters": last["xla_clusters"] if last else None,
        "device": _most(devices),
    }


def without_updates(observed: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The same for a run that took none of its steps: its products trained nothing."""
    if observed["verdict"] == CONTRADICTED:
        return dict(observed)
    skipped = "the only step overflowed and was" if steps == 1 else f"all {steps} steps overflowed and were"
    why = (
        f"no weight was updated: {skipped} skipped; say a smaller loss_scale.init, or more steps, in which a dynamic "
        "scale falls further"
    )
    return {**observed, "verdict": UNKNOWN, "why": why}


def judge(reports: Sequence[Report], planned: Iterable[int] = (), share: float = ENOUGH) -> tuple[str, str]:
    """The verdict and its reason. `share` of the work due in half precision has to run so."""
    kind, why = conclude(reports, [*_of_steps(reports, share), *_of_run(reports, set(planned))])
    if kind == PROVED and share < ENOUGH and any(_of_steps(reports, ENOUGH)):
        why += f"; accepted by proof.share={share:g}, where the rule is {ENOUGH:.0%}"
    return kind, why


def judge_so_far(reports: Sequence[Report], share: float = ENOUGH) -> tuple[str, str]:
    """The verdict and its reason before the end of the run, by findings that no later step can change."""
    return conclude(reports, list(_of_steps(reports, share)))


def findings_of_rank(reports: Sequence[Report], share: float = ENOUGH) -> list[Finding]:
    """Those findings on one rank of a script, where a step may be of one optimizer only."""
    return list(_of_steps(reports, share, one_rank=True))


def unmatched(reports: Sequence[Report]) -> list[str]:
    """The user's entries that nothing observed matched, as `amp.deny=[matmul]`; an operation's names count as one."""
    asked: Mapping[str, Mapping[str, str]] = reports[0].get("asked", {}) if reports else {}
    functions = {entry["function"] for report in reports for entry in report["listed"]}
    functions |= {call["functions"][0] for call in _calls(reports) if len(call["functions"]) == 1}
    functions |= {function for report in reports for function in uncertain_functions(report)}  # findings of their own
    patterns = {pattern for report in reports for pattern in report.get("matched", ())}
    return [
        f"amp.{key}=[{name}]"
        for key, entries in asked.items()
        for meaning, name in entries.items()
        if meaning not in (patterns if key == "keep_fp32" else functions)
    ]


def conclude(reports: Sequence[Report], findings: Sequence[Finding]) -> tuple[str, str]:
    """The worst verdict of these findings, and its reasons."""
    for verdict in WORST_FIRST:
        reasons = list(dict.fromkeys(text for kind, text in findings if kind == verdict))
        if reasons:
            more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
            return verdict, "; ".join(reasons[:REASONS]) + more
    return PROVED, _summary(reports)


def _of_steps(reports: Sequence[Report], share: float, one_rank: bool = False) -> Iterator[Finding]:
    """Findings that stay, whatever is observed later."""
    for step, present in sorted(_by_step(reports).items()):
        absent = set(range(present[0]["world_size"])) - {report["rank"] for report in present}
        if absent and not one_rank and not present[0].get("extra"):
            yield unknown(f"step {step} was not observed on rank {', '.join(map(str, sorted(absent)))}")
        if not absent:
            yield from shard_rules.across_ranks(present)
    if any(_settings(report) != _settings(reports[0]) for report in reports):
        yield contradicted("not all observed steps and ranks had the same precision settings")
    known: set[Finding] = set()
    for report in reports:
        place = f"step {report['step']}" + (f" on rank {report['rank']}" if report["world_size"] > 1 else "")
        for kind, text in (*findings_of(report, share), *shard_rules.findings(report)):
            if (kind, text) not in known:  # else it was said of an earlier step
                known.add((kind, text))
                yield kind, f"{place}: {text}"
    yield from _optimizer(reports, one_rank)


def _settings(report: Report) -> dict[str, Any]:
    """Those that stay the same through a run's attempts. Shards may not: a run that began with whole weights may go on
    with shards. Each report is judged by its own."""
    return {key: value for key, value in report["rule"].items() if key != "parallel"}


def _of_run(reports: Sequence[Report], planned: set[int]) -> Iterator[Finding]:
    """Findings that a later step could have changed."""
    if not _of_training(reports):
        yield unknown("no step was observed")
        return
    for step in sorted(planned - _by_step(reports).keys()):
        yield unknown(f"step {step} should have been observed and was not")
    for entry in unmatched(reports):
        yield unknown(f"{entry} matched nothing that was observed: check the name, or leave it out")
    if reports[0]["rule"]["level"] == "o2" and not any(report["optimizer"] for report in reports):
        yield unknown("no observed step reached the optimizer, so its float32 masters weren't seen")


def _optimizer(reports: Sequence[Report], more_to_come: bool) -> Iterator[Finding]:
    stepped: Counter[str] = Counter()
    for report in reports:
        stepped.update(report["optimizer"])
    if not stepped:
        return
    rule = reports[0]["rule"]
    level, half, names = rule["level"], rule["dtype"], ", ".join(stepped)
    if level == "o3" or (level == "o2" and not rule["masters"]):
        groups = [entry for report in reports for entry in report["parameters"]]
        half_model = any(entry["dtype"] == half and entry["group"] != "frozen" for entry in groups)
        if half not in stepped and half_model and not more_to_come:
            yield contradicted(f"the optimizer stepped {names} weights, but {level} has no masters here")
    elif set(stepped) - ({"float64"} if level == "o0" else set()) - {"float32"}:
        yield contradicted(f"the optimizer stepped {names} weights, but {level} steps float32 ones")


def _flops_of_step(report: Report) -> int:
    done: int = sum(call["flops"] for call in _calls([report])) // report.get("steps", 1)
    return done


def _summary(reports: Sequence[Report]) -> str:
    reports = _of_training(reports)
    gemms = gemm_rules.summary(reports)
    calls = [call for report in reports for call in gemm_rules.split(report)[1]]
    steps = sorted({report["step"] for report in reports})
    ranks = max(report["world_size"] for report in reports)
    where = f"at step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))} on {ranks} rank{'s' * (ranks > 1)}"
    return (
        (f"{gemms}; of the rest, " if gemms and calls else gemms)
        + (_of_level(calls, reports[0]["rule"]) if calls else "")
        + f" {where}"
        + _seen(reports)
        + "".join(f"; by one observer only: {why}" for why in dict.fromkeys(r.get("unaudited") for r in reports) if why)
        + (f"; not judged: {apart}" if (apart := _counts(reports, "apart")) else "")
        + (f"; proof.ignore leaves out {ignored}" if (ignored := _counts(reports, "ignored")) else "")
        + (
            f"; unknown work, which follows the level: {uncounted}"
            if (uncounted := _counts(reports, "uncounted"))
            else ""
        )
        + (f"; gradients summed over the ranks in {reduced}" if (reduced := _dtype_of(reports, "reduced")) else "")
        + _kernels(reports)
        + _adapters(reports[-1])
        + (f"; {shards}" if (shards := shard_rules.summary(reports)) else "")
        + (_others(calls, reports[0]["rule"]) if calls else "")
        + _float32(reports)
    )


def _float32(reports: Sequence[Report]) -> str:
    """Which float32 each kind of product ran in, where the script decides."""
    rule = reports[0]["rule"]
    kinds = {name: dtype for report in reports for name, dtype in sorted(report["float32"]["arithmetic"].items())}
    recurrent = set(filter(None, map(_recurrent, reports)))
    if recurrent:
        kinds["recurrent layers"] = " and ".join(sorted(recurrent))
    if rule["tf32"] is not None or rule["level"] != "o0" or rule["device"] == "cpu" or not kinds:
        return ""
    return f"; float32 products by the script's switches: {', '.join(f'{name} {kind}' for name, kind in kinds.items())}"


def _recurrent(report: Report) -> str:
    """The same of cuDNN's recurrent layers, by their switch alone: a product of theirs has no operands of its own to
    probe. Empty where none ran in float32."""
    ran = any(call["operation"] == "_cudnn_rnn" and call["dtype"] == "float32" for call in report["calls"])
    switches = report["float32"]["switches"]
    setting = next((switches[name] for name in RECURRENT_SWITCHES if name in switches), "")
    if not ran or not setting:
        return ""
    return "unknown" if setting == "unreadable" else "float32" if setting in EXACT_SWITCHES else "tf32"


def _seen(reports: Sequence[Report]) -> str:
    """The part of the steps that was seen, where their operations were counted."""
    operations = sum(report.get("operations", 0) for report in reports)
    left = sum(sum(report.get(key, {}).values()) for report in reports for key in ("ignored", "unaccounted"))
    if not operations:
        return ""
    return (
        f"; {operations - left:,} of {operations:,} operations seen"
        if left
        else f"; all {operations:,} operations seen"
    )


def _kernels(reports: Sequence[Report]) -> str:
    """What the GPU's own record says beside the verdict, which follows the operations."""
    counted = sum(report.get("kernels", 0) for report in reports)
    if others := _counts(reports, "uncounted_kernels"):
        return f"; the GPU also ran {others}, which no counted operation launched"
    if counted:
        return f"; all {counted:,} matrix kernels of the GPU are of counted operations"
    if any("kernels" in each and each["rule"]["device"] == "cuda" and not each.get("unaudited") for each in reports):
        return "; the GPU's own record has no matrix kernels: another profiler has it, or it needs a permission"
    return ""


def _adapters(report: Report) -> str:
    groups = {entry["group"]: entry for entry in report["parameters"] if entry["dtype"] != "float32"}
    trained = sum(entry["elements"] for entry in report["parameters"] if entry["group"] == "adapter")
    return f"; {trained} float32 weights train beside frozen {groups['frozen']['dtype']} ones" if trained else ""


def _of_level(calls: Sequence[Call], rule: Mapping[str, Any]) -> str:
    shares, dtypes = [], {rule["dtype"]}
    if rule["level"] == "o0":
        dtypes |= {call["dtype"] for call in calls if call["dtype"] == "float64"}
    for backward in (False, True):
        part = [call for call in calls if call["backward"] is backward and not is_apart(call, rule)]
        done = flops(call for call in part if call["dtype"] in dtypes)
        shares.append(f"{percent(done, flops(part))} of {phase(backward)}")
    return f"{' and '.join(sorted(dtypes))} in {' and '.join(shares)} matrix FLOPs"


def _others(calls: Sequence[Call], rule: Mapping[str, Any]) -> str:
    """The products in other dtypes than the level's."""
    rest = [call for call in calls if call["dtype"] != rule["dtype"]]
    apart = [call for call in rest if is_apart(call, rule)]
    rest = [call for call in rest if call not in apart]
    either = set(rule.get("either", ()))
    asked = [
        call
        for call in rest
        if call["dtype"] == "float32"
        and ("float32" in allowed_dtypes(call, rule) or (call["functions"] and either.issuperset(call["functions"])))
    ]
    other = [call for call in rest if call not in asked]
    return (
        (f"; kept in float32 as requested: {describe(asked)}" if asked else "")
        + (f"; in other dtypes: {describe(other)}" if other else "")
        + (f"; counted apart, as torch has no half precision of it here: {describe(apart)}" if apart else "")
    )


def _counts(reports: Sequence[Report], key: str) -> str:
    """The operations in that field of the reports, and their calls."""
    seen: Counter[str] = Counter()
    for report in reports:
        seen.update(report.get(key, {}))
    return ", ".join(f"{operation} ({times(count)})" for operation, count in sorted(seen.items()))


def _dtype_of(reports: Iterable[Report], what: str) -> str | None:
    """The dtype of most elements that the reports have as `what`, such as `reduced`; None where none was seen."""
    elements: Counter[str] = Counter()
    for report in reports:
        elements.update(report.get(what, {}))
    return _most(elements)


def _most(counts: Counter[str]) -> str | None:
    return counts.most_common(1)[0][0] if counts else None


def _of_training(reports: Sequence[Report]) -> list[Report]:
    return [report for report in reports if not report.get("evaluation")]


def _calls(reports: Sequence[Report]) -> list[Call]:
    return [call for report in reports for call in report["calls"]]


def _by_step(reports: Sequence[Report]) -> dict[int, list[Report]]:
    steps: dict[int, list[Report]] = {}
    for report in _of_training(reports):
        steps.setdefault(report["step"], []).append(report)
    return steps
