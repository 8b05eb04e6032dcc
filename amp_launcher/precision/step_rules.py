"""Judges one observed step by its level's rule.

The rules judge a report (`precision.observation`) and give findings; a step without findings follows the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_launcher.precision import gemm_rules, value_rules
from amp_launcher.precision.call_summary import (
    Call,
    describe,
    flops,
    is_apart,
    is_half,
    is_narrow,
    percent,
    phase,
    times,
)
from amp_launcher.precision.findings import CONTRADICTED, Finding, Report, contradicted, unknown
from amp_launcher.precision.levels import ENOUGH
from amp_launcher.precision.operators import operator_of

ATTENTION = "scaled_dot_product_attention"
GRADIENTS = 2.5
"""The most work that a product's gradients are, in products: two, and for attention two and a half."""


def findings_of(report: Report, share: float = ENOUGH) -> Iterator[Finding]:
    """Findings that contradict the level's rule, or leave it open. `share` is the part of the work due in half
    precision that has to run so."""
    if report.get("evaluation"):
        yield from (finding for finding in _lists(report) if finding[0] == CONTRADICTED)
        return
    for problem in report["problems"]:
        yield unknown(problem)
    if report["problems"] and not report["calls"]:
        return  # nothing else was observed
    for operation, count in sorted(report["unaccounted"].items()):
        yield unknown(_unaccounted(operation, count, report.get("operations", 0)))
    for what, count in sorted(report.get("unwritten", {}).items()):
        yield unknown(
            f"{what}: nothing that was seen wrote {count} of the {report['tensors']} tensors that training used"
        )
    for kernel, count in sorted(report.get("unlaunched_kernels", {}).items()):
        yield unknown(
            f"the GPU ran {kernel} ({times(count)}), which multiplies matrices and which no operation launched"
        )
    if count := report.get("old_weights"):
        yield unknown(f"forward multiplied old copies of weights, made before the weights changed ({times(count)})")
    if report["audit"]:
        yield unknown(f"the two observers disagree: {report['audit']}")
    calls, rule = report["calls"], report["rule"]
    for backward in (False, True):
        if not report.get("grows") and not flops(call for call in calls if call["backward"] is backward):
            yield unknown(f"no matrix product or convolution was seen in {phase(backward)}")
    elsewhere = {call["device"] for call in calls} - {rule["device"]}
    if elsewhere:
        yield contradicted(f"device={rule['device']}, but matrix products ran on {', '.join(sorted(elsewhere))}")
    if rule["level"] == "o0":
        yield from _no_half(calls)
    else:
        rest = gemm_rules.split(report)[1]
        yield from gemm_rules.too_narrow(rest, rule)
        if "gemm" in rule:
            yield from gemm_rules.findings(report, share)
        of_level = [call for call in rest if not is_narrow(call["dtype"]) and not is_apart(call, rule)]
        for backward in {call["backward"] for call in rest} - {call["backward"] for call in of_level}:
            if all(is_apart(call, rule) for call in rest if call["backward"] is backward):
                yield unknown(f"no product in {phase(backward)} has a half type: {describe(rest)}")
        yield from _half_where_due(of_level, rule, share, report)
        yield from _lists(report)
    yield from value_rules.parameters(report)
    yield from value_rules.reduction(report)
    yield from value_rules.loss_scale(report)
    yield from value_rules.float32(report)


def _unaccounted(operation: str, count: int, of: int) -> str:
    """What may have multiplied matrices, and what to do if it doesn't."""
    name = operator_of(operation)
    if not name:
        return f"{operation} can't be counted ({times(count)})"
    library = f"{name.partition('.')[0]}.*"
    share = f"{count} of {of:,} operations" if of else times(count)
    pattern = {"aten.*": name.rpartition(".")[0], "triton.*": name}.get(library, library)
    return (
        f"{operation} is unknown to the observer ({share}); if it multiplies no matrices, say proof.ignore=[{pattern}]"
    )


def allowed_dtypes(call: Call, rule: Mapping[str, Any]) -> set[str]:
    """The dtypes that the level allows a call: two where its function or module isn't known."""
    functions, denied = set(call["functions"]), set(rule["deny"])
    allowed = set()
    if call["kept"] is not False or functions & denied:
        allowed.add("float32")
    if not call["kept"] and not (functions and functions <= denied):
        allowed.add(rule["dtype"])
    return allowed


def _no_half(calls: Sequence[Call]) -> Iterator[Finding]:
    narrow = [call for call in calls if call["dtype"] not in ("float32", "float64", "complex64", "complex128")]
    if narrow:
        yield contradicted(f"o0 is float32, but these ran: {describe(narrow)}")


def _half_where_due(calls: Sequence[Call], rule: Mapping[str, Any], share: float, report: Report) -> Iterator[Finding]:
    """Each call against the level's rule, forward and backward separately."""
    grows = report.get("grows", False)
    either = set(rule.get("either", ()))
    certain = [call for call in calls if not either & set(call["functions"])]
    perhaps = [call for call in calls if either & set(call["functions"]) and not either.issuperset(call["functions"])]
    # Half precision is right for such a call, whichever function it is of.
    judged = [*certain, *(call for call in perhaps if call["dtype"] == rule["dtype"])]
    for backward in {call["backward"] for call in calls} - {call["backward"] for call in judged}:
        yield unknown(f"all products in {phase(backward)} are on lists that allow both dtypes")
    for call in judged:
        if allowed_dtypes(call, rule) == {"float32"} and call["dtype"] != "float32":
            yield contradicted(f"{describe([call])} ran in {phase(call['backward'])}, but {_why_float32(call, rule)}")
    forward, backward_calls = ([call for call in judged if call["backward"] is flag] for flag in (False, True))
    float32_forward = flops(call for call in forward if allowed_dtypes(call, rule) == {"float32"})
    excused = int(GRADIENTS * float32_forward)
    parts = [_Part.of(forward, rule, 0), _Part.of(backward_calls, rule, excused)]
    for part in parts:
        if part.seen and part.required == 0 and not grows:
            where = phase(part.backward)
            yield unknown(f"nothing in {where} is due in {rule['dtype']}: all of it is denied or kept in float32")
    if grows and any(part.done for part in parts):
        return  # a graph that has not run yet may still be the larger part
    yield from _uncertain(forward, rule, share)
    short = [part for part in parts if part.is_short(share)]
    uncounted = {*report.get("uncounted", {}), *(report["unaccounted"] if any(part.done for part in parts) else ())}
    if short and uncounted:  # which may be the larger part
        unseen = f"the work of {', '.join(sorted(uncounted))} is unknown"
        yield unknown(f"{_shortfall(short, rule, share)}, and {unseen}")
    elif short:
        yield contradicted(_shortfall(short, rule, share))
    gradients = GRADIENTS * flops(
        call
        for call in calls
        if either & set(call["functions"]) and call["dtype"] == "float32" and not call["backward"]
    )
    for backward, allowance, expected in ((False, 0, 0.0), (True, excused, gradients)):
        known, doubtful = ([call for call in group if call["backward"] is backward] for group in (certain, perhaps))
        yield from _perhaps_due(known, doubtful, rule, share, allowance, expected)


def _perhaps_due(
    known: Sequence[Call],
    doubtful: Sequence[Call],
    rule: Mapping[str, Any],
    share: float,
    excused: int,
    expected: float,
) -> Iterator[Finding]:
    """`doubtful` calls may be of a function that is allowed both dtypes, or of one that is due in half precision; a
    finding where the second would be a shortfall. So many FLOPs in another dtype are `expected` of the first."""
    wide = [call for call in doubtful if call["dtype"] != rule["dtype"]]
    counted = wide if flops(wide) > expected else []
    if doubtful and _Part.of([*known, *counted], rule, excused).is_short(share):
        named = describe(wide or doubtful)
        yield unknown(f"the function of these isn't known, and may be one due in {rule['dtype']}: {named}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """The work of forward, or of backward, that is due in half precision, in FLOPs."""

    backward: bool
    seen: bool
    """Some work was judged."""
    total: int
    required: int
    """Without the float32 work that is excused because its origin isn't known: in compiled code not all gradients can
    be traced to their modules, and those of float32 modules are float32."""
    uncertain: int
    others: list[Call]
    """The calls in another dtype."""

    @classmethod
    def of(cls, calls: Sequence[Call], rule: Mapping[str, Any], excused: int) -> _Part:
        due = [call for call in calls if rule["dtype"] in allowed_dtypes(call, rule)]
        others = [call for call in due if call["dtype"] != rule["dtype"]]
        uncertain = flops(c for c in others if c["dtype"] == "float32" and "float32" in allowed_dtypes(c, rule))
        total = flops(due)
        return cls(
            backward=bool(calls) and calls[0]["backward"],
            seen=bool(calls),
            total=total,
            required=total - min(uncertain, excused),
            uncertain=uncertain,
            others=others,
        )

    @property
    def done(self) -> int:
        return self.total - flops(self.others)

    def is_short(self, share: float) -> bool:
        if self.required == 0:
            return False
        return self.done < share * self.required and (
            self.backward or self.done < share * (self.total - self.uncertain)
        )


def _shortfall(short: Sequence[_Part], rule: Mapping[str, Any], share: float) -> str:
    """Which work ran in another dtype, and how to accept it where it was intended."""
    half, others = rule["dtype"], [call for part in short for call in part.others]
    ran = " and ".join(f"{percent(part.done, part.total)} of {phase(part.backward)}" for part in short)
    required = f"{rule['level']} requires {ENOUGH:.0%}" if share == ENOUGH else f"proof.share={share:g} requires more"
    applied = all(part.done for part in short)  # else nothing could be accepted
    ways = [*_denial(others, rule), *_lower_share(short)] if applied else []
    accept = f" ({' or '.join(ways)} accepts that)" if ways else ""
    if all(call["functions"] == [ATTENTION] and call["dtype"] == "float32" for call in others):
        why = "torch chooses the kernel of attention"
        return f"{ran} ran in {half}, but {required}; the rest is {describe(others)}: {why}{accept}"
    cudnn = f": {_cudnn_rule(rule)}" if all(map(_by_cudnn_rule, others)) else ""
    return f"{ran} ran in {half}, but {required}; in other dtypes: {describe(others)}{cudnn}{accept}"


def _by_cudnn_rule(call: Call) -> bool:
    return call["operation"] in ("_cudnn_rnn", "_cudnn_rnn_backward") and call["dtype"] == "float16"


def _cudnn_rule(rule: Mapping[str, Any]) -> str:
    """Why an LSTM or a GRU on CUDA is float16 whatever autocast was asked for, and the way out."""
    ways = "amp.dtype=float16"
    if "lists" not in rule:
        ways += ", or amp.keep_fp32=[NAME] for the layer"
    return (
        "torch's autocast gives LSTM, GRU and RNN layers of cuDNN float16, also where it is on for bfloat16; "
        f"say {ways}"
    )


def _denial(others: Sequence[Call], rule: Mapping[str, Any]) -> Iterator[str]:
    """The entry of `amp.deny` that asks for what ran: some functions compute in float32 whatever their operands."""
    most = max(others, key=lambda call: call["flops"])
    no_lists = rule["level"] == "o3" or (rule["level"] == "o2" and rule.get("float32_parameters")) or "lists" in rule
    if not no_lists and most["dtype"] == "float32" and len(most["functions"]) == 1:
        yield f"amp.deny=[{most['functions'][0]}]"


def _lower_share(short: Sequence[_Part]) -> Iterator[str]:
    """The `proof.share` that accepts what ran, in steps of 5%; none where most of the work ran in another dtype."""
    most = min(part.done * 20 // part.total for part in short)
    if most > 10:
        yield f"proof.share={most / 20:g}"


def _uncertain(forward: Sequence[Call], rule: Mapping[str, Any], share: float) -> Iterator[Finding]:
    """Compiled code doesn't always show which function or module a product came from; a finding where that matters."""
    uncertain = [call for call in forward if len(allowed_dtypes(call, rule)) > 1]
    in_float32 = [call for call in uncertain if call["dtype"] == "float32"]
    due = [call for call in forward if rule["dtype"] in allowed_dtypes(call, rule)]
    if in_float32 and flops(call for call in due if call["dtype"] == rule["dtype"]) < share * flops(due):
        yield unknown(f"the function or module of these isn't known: {describe(in_float32)}")
    denied = [c for c in uncertain if c["dtype"] != "float32" and set(c["functions"]) & set(rule["deny"])]
    if denied:
        yield unknown(f"these may be of a function on amp.deny: {describe(denied)}")


def _why_float32(call: Call, rule: Mapping[str, Any]) -> str:
    if call["kept"] and not rule["keep_fp32"]:
        return 'the script set its layer to dtype="float32"'
    if call["kept"]:
        return f"amp.keep_fp32=[{','.join(rule['keep_fp32'])}] keeps it in float32"
    return f"{call['functions'][0]} is on amp.deny"


def uncertain_functions(report: Report) -> dict[str, str]:
    """Functions of the lists of which the report doesn't show whether or how they ran -> the sentence that says so."""
    rule, sentences = report["rule"], {}
    seen = {entry["function"] for entry in report["listed"]}
    certain = {call["functions"][0] for call in report["calls"] if len(call["functions"]) == 1}
    compiled = any(call["compiled"] for call in report["calls"])
    for function in (*rule["allow"], *rule["deny"]):
        key = "allow" if function in rule["allow"] else "deny"
        if "asked" in report and function not in report["asked"][key]:
            continue  # a gradient, which goes where its operation goes
        if function in report["unseen"]:
            sentences[function] = (
                f"{function} is on amp.{key}, but its calls can't be distinguished from those of the functions it calls"
            )
        elif function not in seen and compiled and function not in certain:
            sentences[function] = f"{function} is on amp.{key}, but compiled code doesn't show how it ran"
    return sentences


def _lists(report: Report) -> Iterator[Finding]:
    """A denied function may have no half operand. An allowed one has to have run in half precision, but not always:
    the lists hold for what the model does, and the training loop may call it too.
    """
    rule = report["rule"]
    for sentence in uncertain_functions(report).values():
        yield unknown(sentence)
    for function in rule["deny"]:
        for entry in (entry for entry in report["listed"] if entry["function"] == function):
            if any(is_half(dtype) for dtype in entry["dtypes"]):
                yield contradicted(
                    f"{function} is on amp.deny, but ran on {_operands(entry)} ({times(entry['calls'])})"
                )
    for function in rule["allow"]:
        runs = [entry for entry in report["listed"] if entry["function"] == function]
        if runs and all(entry["dtypes"][:1] != [rule["dtype"]] for entry in runs):
            yield contradicted(f"{function} is on amp.allow, but ran on {_operands(runs[0])}")


def _operands(entry: Mapping[str, Any]) -> str:
    return " and ".join(dict.fromkeys(entry["dtypes"]))
