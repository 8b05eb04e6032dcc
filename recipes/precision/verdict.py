"""Whether what ran is the precision that was asked for: `proved`, `contradicted` or `unknown`, and why.

Judged are the reports (`recipes.precision.observation`) of the observed steps of each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
Finding = tuple[str, str]
"""`contradicted` or `unknown`, and the sentence that says why."""

PROVED, CONTRADICTED, UNKNOWN = "proved", "contradicted", "unknown"

ENOUGH = 0.9
"""Of the floating-point operations that are to run in half precision. Not 1: some really can't (torch's attention with
dropout computes in float32 on a CPU)."""
GRADIENTS = 2.5
"""The most work that a product's gradients are, in products: two, and for attention two and a half."""
EXACT_SWITCHES = ("none", "ieee", "highest", "False", "unreadable")
"""Settings under which float32 products are left as they are; where one is unreadable, the arithmetic tells."""
REASONS = 4
"""The most reasons that `why` gives."""


def observed(reports: Iterable[Report], planned: Iterable[int] = ()) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks; `planned` are steps that had to be observed."""
    reports = sorted(reports, key=lambda each: (each["step"], each["rank"]))
    verdict, why = judge(reports, planned)
    reports = _of_training(reports)
    flops: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for call in _calls(reports):
        flops[call["dtype"]] += call["flops"]
        devices[call["device"]] += call["flops"]
    last = reports[-1] if reports else None
    elements: Counter[str] = Counter()
    for each in last["parameters"] if last else ():
        elements[each["dtype"]] += each["elements"]
    found = {each for report in reports for each in report["float32"]["arithmetic"].values()}
    return {
        "verdict": verdict,
        "why": why,
        "dtype": flops.most_common(1)[0][0] if flops else None,
        "half_flop_share": round(sum(flops[each] for each in flops if _is_half(each)) / flops.total(), 6)
        if flops.total()
        else None,
        "param_dtypes": dict(elements),
        "reduce_dtype": _reduce_dtype(reports),
        "tf32": ("tf32" in found) if found else None,
        "xla_clusters": last["xla_clusters"] if last else None,
        "device": devices.most_common(1)[0][0] if devices else None,
    }


def without_updates(observed: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The same of a run none of whose steps was taken: what its products ran in trained nothing."""
    if observed["verdict"] == CONTRADICTED:
        return dict(observed)
    told = (
        f"no weight was updated: {'the only step' if steps == 1 else f'all {steps} steps'} overflowed and "
        f"{'was' if steps == 1 else 'were'} skipped; say a smaller loss_scale.init, or more steps, in "
        "which a dynamic scale falls further"
    )
    return {**observed, "verdict": UNKNOWN, "why": told}


def _reduce_dtype(reports: Iterable[Report]) -> str | None:
    """In which gradients were summed over the ranks; None where no sum was seen."""
    reduced: Counter[str] = Counter()
    for report in reports:
        reduced.update(report.get("reduced", {}))
    return reduced.most_common(1)[0][0] if reduced else None


def judge(reports: Sequence[Report], planned: Iterable[int] = ()) -> tuple[str, str]:
    """The verdict and its reason."""
    return _verdict(reports, [*_of_steps(reports), *_of_run(reports, set(planned))])


def judge_so_far(reports: Sequence[Report]) -> tuple[str, str]:
    """The same before the end of the run: of what speaks against it, only what no later step can change."""
    return _verdict(reports, list(_of_steps(reports)))


def _verdict(reports: Sequence[Report], findings: Sequence[Finding]) -> tuple[str, str]:
    for verdict in (CONTRADICTED, UNKNOWN):
        reasons = list(dict.fromkeys(text for kind, text in findings if kind == verdict))
        if reasons:
            more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
            return verdict, "; ".join(reasons[:REASONS]) + more
    return PROVED, _summary(reports)


def _of_steps(reports: Sequence[Report]) -> Iterator[Finding]:
    """Findings that stay, whatever is observed later."""
    for step, present in sorted(_by_step(reports).items()):
        absent = set(range(present[0]["world_size"])) - {report["rank"] for report in present}
        if absent:
            yield UNKNOWN, f"step {step} was not observed on rank {', '.join(map(str, sorted(absent)))}"
    if any(report["rule"] != reports[0]["rule"] for report in reports):
        yield CONTRADICTED, "not all observed steps and ranks were told the same precision"
    for report in reports:
        for kind, text in _of_step(report):
            yield kind, f"{_place(report)}: {text}"
    yield from _optimizer(reports)


def _of_run(reports: Sequence[Report], planned: set[int]) -> Iterator[Finding]:
    """Findings that a later step could have cured."""
    if not _of_training(reports):
        yield UNKNOWN, "no step was observed"
        return
    for step in sorted(planned - _by_step(reports).keys()):
        yield UNKNOWN, f"step {step} was to be observed and was not"
    for entry in unmatched(reports):
        yield UNKNOWN, f"{entry} matched nothing that was observed: check the name, or leave it out"
    if reports[0]["rule"]["level"] == "o2" and not any(report["optimizer"] for report in reports):
        yield UNKNOWN, "no observed step reached the optimizer, so its float32 masters weren't seen"


def unmatched(reports: Sequence[Report]) -> list[str]:
    """The user's entries that nothing observed matched, as `amp.deny=[matmul]`; an operation's names count as one."""
    asked: Mapping[str, Mapping[str, str]] = reports[0].get("asked", {}) if reports else {}
    functions = {each["function"] for report in reports for each in report["listed"]}
    functions |= {each["functions"][0] for each in _calls(reports) if len(each["functions"]) == 1}
    patterns = {each for report in reports for each in report.get("matched", ())}
    return [
        f"amp.{key}=[{name}]"
        for key, entries in asked.items()
        for means, name in entries.items()
        if means not in (patterns if key == "keep_fp32" else functions) and not _untold(means, reports)
    ]


def _untold(function: str, reports: Sequence[Report]) -> bool:
    """Whether some step can't tell what became of a function, which is a finding of its own."""
    return any(
        text.startswith(f"{function} is on") for each in reports for kind, text in _lists(each) if kind == UNKNOWN
    )


def _of_training(reports: Sequence[Report]) -> list[Report]:
    return [each for each in reports if not each.get("evaluation")]


def _calls(reports: Sequence[Report]) -> list[Mapping[str, Any]]:
    return [call for report in reports for call in report["calls"]]


def _by_step(reports: Sequence[Report]) -> dict[int, list[Report]]:
    found: dict[int, list[Report]] = {}
    for report in _of_training(reports):
        found.setdefault(report["step"], []).append(report)
    return found


def _of_step(report: Report) -> Iterator[Finding]:
    if report.get("evaluation"):
        yield from (each for each in _lists(report) if each[0] == CONTRADICTED)
        return
    for problem in report["problems"]:
        yield UNKNOWN, problem
    for operation, times in sorted(report["unaccounted"].items()):
        yield UNKNOWN, f"{operation} can't be counted ({_times(times)})"
    if report["audit"]:
        yield UNKNOWN, f"the two witnesses disagree: {report['audit']}"
    calls, rule = report["calls"], report["rule"]
    for phase in (False, True):
        if not _flops(each for each in calls if each["backward"] is phase):
            yield UNKNOWN, f"no matrix product or convolution was seen in {_phase(phase)}"
    elsewhere = {each["device"] for each in calls} - {rule["device"]}
    if elsewhere:
        yield CONTRADICTED, f"device={rule['device']}, and matrix products ran on {', '.join(sorted(elsewhere))}"
    if rule["level"] == "o0":
        yield from _no_half(calls)
    else:
        yield from _half_where_due(calls, rule)
        yield from _lists(report)
    yield from _parameters(report)
    yield from _reduction(report)
    yield from _float32(report)


def _no_half(calls: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    narrow = [each for each in calls if each["dtype"] not in ("float32", "float64", "complex64", "complex128")]
    if narrow:
        yield CONTRADICTED, f"o0 is float32, and there ran {_tell(narrow)}"


def _half_where_due(calls: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> Iterator[Finding]:
    """Each call against what the level says of it, forward and backward by themselves."""
    either = set(rule.get("either", ()))
    judged = [each for each in calls if not either & set(each["functions"])]
    for phase in {each["backward"] for each in calls} - {each["backward"] for each in judged}:
        yield UNKNOWN, f"all of {_phase(phase)} is on amp.infer or amp.clear, which leave it open what it runs in"
    calls = judged
    forward, backward = ([each for each in calls if each["backward"] is flag] for flag in (False, True))
    for call in calls:
        if _allowed(call, rule) == {"float32"} and call["dtype"] != "float32":
            yield CONTRADICTED, f"{_reason(call, rule)} and ran as {_tell([call])} in {_phase(call['backward'])}"
    yield from _share(forward, rule, excused=0)
    yield from _told_apart(forward, rule)
    float32_forward = _flops(each for each in forward if _allowed(each, rule) == {"float32"})
    yield from _share(backward, rule, excused=int(GRADIENTS * float32_forward))


def _share(phase: Sequence[Mapping[str, Any]], rule: Mapping[str, Any], excused: int) -> Iterator[Finding]:
    """Whether enough of what is to run in half precision did.

    Up to `excused` of float32 work is let pass where it can't be told whose it was: in compiled code, not all
    gradients can be traced to their modules, and those of float32 modules are float32.
    """
    if not phase:
        return
    half, backward = rule["dtype"], phase[0]["backward"]
    due = [each for each in phase if rule["dtype"] in _allowed(each, rule)]
    others = [each for each in due if each["dtype"] != half]
    in_doubt = _flops(each for each in others if each["dtype"] == "float32" and "float32" in _allowed(each, rule))
    total, done = _flops(due), _flops(due) - _flops(others)
    left = total - min(in_doubt, excused)
    if left == 0:
        yield UNKNOWN, f"nothing in {_phase(backward)} was left to run in {half}: all is denied or kept in float32"
    elif done < ENOUGH * left and (backward or done < ENOUGH * (total - in_doubt)):
        yield (
            CONTRADICTED,
            f"{_percent(done, total)} of {_phase(backward)} ran in {half}, and {rule['level']} wants {ENOUGH:.0%}; "
            f"in other dtypes: {_tell(others)}{_remedy(others, rule)}",
        )


def _told_apart(forward: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> Iterator[Finding]:
    """Compiled code doesn't always tell which function or module a product came from: where that matters, say so."""
    doubtful = [each for each in forward if len(_allowed(each, rule)) > 1]
    in_float32 = [each for each in doubtful if each["dtype"] == "float32"]
    due = [each for each in forward if rule["dtype"] in _allowed(each, rule)]
    if in_float32 and _flops(each for each in due if each["dtype"] == rule["dtype"]) < ENOUGH * _flops(due):
        yield UNKNOWN, f"it can't be told which function or module {_tell(in_float32)} came from"
    denied = [each for each in doubtful if each["dtype"] != "float32" and set(each["functions"]) & set(rule["deny"])]
    if denied:
        yield UNKNOWN, f"it can't be told whether {_tell(denied)} came from a function on amp.deny"


def _remedy(others: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> str:
    """How to ask for what ran, where it was meant: some functions compute in float32 whatever they are given."""
    most = max(others, key=lambda each: each["flops"])
    no_lists = rule["level"] == "o3" or (rule["level"] == "o2" and rule.get("float32_parameters"))
    if no_lists or most["dtype"] != "float32" or len(most["functions"]) != 1:
        return ""
    return f" (if that is meant, amp.deny=[{most['functions'][0]}] asks for it)"


def _allowed(call: Mapping[str, Any], rule: Mapping[str, Any]) -> set[str]:
    """The dtypes that the level allows a call: two where it can't be told which."""
    allowed = set()
    functions = set(call["functions"])
    denied = set(rule["deny"])
    if call["kept"] is not False or functions & denied:
        allowed.add("float32")
    if not call["kept"] and not (functions and functions <= denied):
        allowed.add(rule["dtype"])
    return allowed


def _reason(call: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    if call["kept"] and not rule["keep_fp32"]:
        return 'the script set its layer to dtype="float32"'
    if call["kept"]:
        return f"amp.keep_fp32=[{','.join(rule['keep_fp32'])}] keeps it in float32,"
    return f"{call['functions'][0]} is on amp.deny,"


def _lists(report: Report) -> Iterator[Finding]:
    """A denied function may have no half operand. An allowed one has to have run in half precision, but not always:
    the lists hold for what the model does, and the training loop may call it too.
    """
    rule = report["rule"]
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for each in report["listed"]:
        seen.setdefault(each["function"], []).append(each)
    certain = {each["functions"][0] for each in report["calls"] if len(each["functions"]) == 1}
    compiled = any(each["compiled"] for each in report["calls"])
    for function in (*rule["allow"], *rule["deny"]):
        key = "allow" if function in rule["allow"] else "deny"
        if "asked" in report and function not in report["asked"][key]:
            continue  # a gradient, which goes where its operation goes
        if function in report["unseen"]:
            yield UNKNOWN, f"{function} is on amp.{key}, and its calls can't be told from the functions that it calls"
        elif function not in seen and compiled and function not in certain:
            yield UNKNOWN, f"{function} is on amp.{key}, and compiled code doesn't say what became of it"
    for function in rule["deny"]:
        for each in seen.get(function, ()):
            if any(_is_half(dtype) for dtype in each["dtypes"]):
                yield CONTRADICTED, f"{function} is on amp.deny and ran on {_dtypes(each)} ({_times(each['calls'])})"
    for function in rule["allow"]:
        runs = seen.get(function, [])
        if runs and all(each["dtypes"][:1] != [rule["dtype"]] for each in runs):
            yield CONTRADICTED, f"{function} is on amp.allow and ran on {_dtypes(runs[0])}"


def _parameters(report: Report) -> Iterator[Finding]:
    rule = report["rule"]
    level, half = rule["level"], rule["dtype"]
    if not report["parameters"]:
        yield UNKNOWN, "the model has no floating-point parameters"
    for each in report["parameters"]:
        whole = level in ("o0", "o1") or each["group"] == "kept" or (each["group"] == "norm" and level == "o2")
        whole = each["group"] == "kept" or rule.get("float32_parameters", whole)
        expected = "float32" if whole else half
        if each["dtype"] != expected:
            what = {"norm": "parameters of norms", "kept": "parameters kept in float32"}.get(
                each["group"], "parameters"
            )
            yield CONTRADICTED, f"{each['elements']} {what} are {each['dtype']}, and {level} makes them {expected}"


def _optimizer(reports: Sequence[Report]) -> Iterator[Finding]:
    if not reports:
        return
    rule = reports[0]["rule"]
    level, half = rule["level"], rule["dtype"]
    stepped: Counter[str] = Counter()
    for report in reports:
        stepped.update(report["optimizer"])
    if not stepped:
        return
    if level == "o3" or (level == "o2" and not rule["masters"]):
        if half not in stepped and any(each["dtype"] == half for report in reports for each in report["parameters"]):
            yield CONTRADICTED, f"the optimizer stepped {', '.join(stepped)} weights, and {level} has no masters here"
    elif set(stepped) != {"float32"}:
        yield CONTRADICTED, f"the optimizer stepped {', '.join(stepped)} weights, and {level} steps float32 ones"


def _reduction(report: Report) -> Iterator[Finding]:
    """What steps float32 weights is summed over the ranks in float32. Reports of before this was seen lack it."""
    rule, reduced = report["rule"], report.get("reduced", {})
    if rule["level"] == "o3" or (rule["level"] == "o2" and not rule["masters"]):
        return
    narrow = {dtype: elements for dtype, elements in reduced.items() if _is_half(dtype)}
    if sum(narrow.values()) > (1 - ENOUGH) * sum(reduced.values()):
        yield (
            CONTRADICTED,
            f"{_percent(sum(narrow.values()), sum(reduced.values()))} of the gradients were summed over the ranks in "
            f"{' and '.join(sorted(narrow))}, and {rule['level']} does that in float32: give precision.optimizer the "
            "model as DDP wraps it, and FSDP reduce_dtype=torch.float32",
        )


def _float32(report: Report) -> Iterator[Finding]:
    """Whether float32 products were float32. At o0 nothing may even be allowed to round them."""
    rule, found = report["rule"], report["float32"]
    rounded = {name: each for name, each in found["arithmetic"].items() if each != "float32"}
    if rule["tf32"]:
        if rule["level"] == "o0" and found["arithmetic"] and "tf32" not in rounded.values():
            yield CONTRADICTED, "tf32=true, and float32 products were not rounded to TF32"
        rounded = {name: each for name, each in rounded.items() if each != "tf32"}
    if rounded:
        named = ", ".join(f"{name} to {each}" for name, each in sorted(rounded.items()))
        yield CONTRADICTED, f"float32 products are rounded: {named}"
    if rule["level"] == "o0" and not rule["tf32"]:
        for name, setting in sorted(found["switches"].items()):
            if setting not in EXACT_SWITCHES:
                yield CONTRADICTED, f"{name}={setting} lets o0's float32 products be rounded"


def _summary(reports: Sequence[Report]) -> str:
    reports = _of_training(reports)
    rule = reports[0]["rule"]
    dtype = rule["dtype"]
    shares = []
    for backward in (False, True):
        calls = [each for each in _calls(reports) if each["backward"] is backward]
        done = _flops(each for each in calls if each["dtype"] == dtype)
        shares.append(f"{_percent(done, _flops(calls))} of {_phase(backward)}")
    steps = sorted({report["step"] for report in reports})
    ranks = max(report["world_size"] for report in reports)
    rest = [each for each in _calls(reports) if each["dtype"] != dtype]
    asked = [each for each in rest if each["dtype"] == "float32" and "float32" in _allowed(each, rule)]
    other = [each for each in rest if each not in asked]
    return (
        f"{dtype} in {' and '.join(shares)} matrix FLOPs at step{'s' * (len(steps) > 1)} "
        f"{', '.join(map(str, steps))} on {ranks} rank{'s' * (ranks > 1)}"
        + (f"; gradients summed over the ranks in {reduced}" if (reduced := _reduce_dtype(reports)) else "")
        + (f"; kept in float32 as asked: {_tell(asked)}" if asked else "")
        + (f"; in other dtypes: {_tell(other)}" if other else "")
    )


def _tell(calls: Iterable[Mapping[str, Any]], most: int = 3) -> str:
    """`linear in float32 (12 calls), ...`, the most work first."""
    flops: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for each in calls:
        name = each["functions"][0] if len(each["functions"]) == 1 else each["operation"]
        flops[name, each["dtype"]] += each["flops"]
        times[name, each["dtype"]] += each["calls"]
    told = [f"{name} in {dtype} ({_times(times[name, dtype])})" for (name, dtype), _ in flops.most_common(most)]
    return ", ".join(told) + (f" and {len(flops) - most} more" if len(flops) > most else "")


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that only all of it is 100.0%."""
    return f"{1000 * part // whole / 10}%"


def _times(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def _flops(calls: Iterable[Mapping[str, Any]]) -> int:
    return sum(each["flops"] for each in calls)


def _is_half(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16") or dtype.startswith("float8")


def _dtypes(each: Mapping[str, Any]) -> str:
    return " and ".join(dict.fromkeys(each["dtypes"]))


def _phase(backward: bool) -> str:
    return "backward" if backward else "forward"


def _place(report: Report) -> str:
    return f"step {report['step']}" + (f" on rank {report['rank']}" if report["world_size"] > 1 else "")
