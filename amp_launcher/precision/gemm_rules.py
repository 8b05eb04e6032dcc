"""Judges one observed step by the number format of its linear layers' products (`amp.gemm`), role by role.

A product that is narrower than its format promises, or in another dtype of the same width, contradicts at any share; so
does a wider one, unless `proof.share` was lowered. Products of other layers follow the level's rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_launcher.precision.call_summary import Call, flops, is_narrow, percent
from amp_launcher.precision.findings import EMULATED, Finding, Report, contradicted, unknown
from amp_launcher.precision.gemm import FORMATS, ROLES, Role
from amp_launcher.precision.levels import ENOUGH
from amp_launcher.shown import some

IN_WORDS: Mapping[Role, str] = {
    "forward": "forward",
    "input_gradient": "the input gradients",
    "weight_gradient": "the weight gradients",
}


def split(report: Report) -> tuple[list[Call], list[Call]]:
    """The products of the layers of `amp.gemm`, and those that the level's rule is for."""
    asked = set(report["rule"].get("gemm", {}).get("layers", ()))
    eligible = [call for call in report["calls"] if asked.intersection(call.get("layers") or ())]
    rest = [call for call in report["calls"] if not asked.intersection(call.get("layers") or ())]
    return eligible, rest


def too_narrow(rest: Sequence[Call], rule: Mapping[str, Any]) -> Iterator[Finding]:
    """Products of eight bits or fewer outside the layers of `amp.gemm`."""
    gemm = rule.get("gemm")
    for call in rest:
        if not is_narrow(call["dtype"]) or (gemm and not gemm["layers"]):
            continue
        where = some(call.get("layers") or [call["operation"]])
        if gemm is None:
            yield contradicted(
                f"{where} ran in {call['dtype']}, narrower than amp={rule['level']} asks for: leave out what converts "
                "it, or name its format with amp.gemm"
            )
        elif call.get("layers") is None:
            yield unknown(f"the layer of {where} in {call['dtype']} can't be told")
        else:
            yield contradicted(f"{where} ran in {call['dtype']}, but amp.gemm={gemm['format']} is not for it")


def findings(report: Report, share: float) -> Iterator[Finding]:
    """Findings about the layers of `amp.gemm`."""
    rule, grows = report["rule"], report.get("grows", False)
    gemm, (eligible, rest) = rule["gemm"], split(report)
    if not gemm["layers"]:
        why = (
            f"amp.gemm={gemm['format']} was given no layers: precision.prepare(model) of Precision() converts those "
            "that it is for"
        )
        narrow = any(is_narrow(call["dtype"]) for call in rest)
        yield unknown(f"{why}; what a script converts itself can't be judged") if narrow else contradicted(why)
        return
    for call in rest:
        if call.get("layers") is None and not call["role"] and not is_narrow(call["dtype"]):
            yield unknown(f"the layer of {call['operation']} in {call['dtype']} can't be told")
    for call in eligible:
        if not call["role"]:
            yield unknown(f"the role of {call['operation']} of {some(call['layers'])} can't be told")
    if grows:
        return
    seen = {layer for call in eligible if call["role"] == "forward" for layer in call["layers"]}
    absent = [layer for layer in gemm["layers"] if layer not in seen]
    if absent:
        yield unknown(f"no product of {some(absent)} was seen in forward")
    elif all(call["role"] == "forward" for call in eligible):
        yield unknown(f"no gradient of the layers of amp.gemm={gemm['format']} was seen")
    for role in ROLES:
        yield from _of_role(role, [call for call in eligible if call["role"] == role], gemm, share)


def _of_role(role: Role, calls: Sequence[Call], gemm: Mapping[str, Any], share: float) -> Iterator[Finding]:
    promised, scale = list(FORMATS[gemm["format"]].operands(role)), FORMATS[gemm["format"]].scale
    name, words = f"amp.gemm={gemm['format']}", IN_WORDS[role]
    wide: list[Call] = []
    for call in calls:
        dtypes = call["emulates"] or call["operands"]
        if dtypes == promised:
            if call["emulates"]:
                yield (
                    EMULATED,
                    f"{words} of {some(call['layers'])}: operands were rounded to {product(promised)} and then "
                    f"multiplied in {product(call['operands'])}",
                )
            elif other := [dtype for dtype in call.get("scales", ()) if dtype != scale]:
                yield contradicted(
                    f"{words} of {some(call['layers'])} was scaled by {product(other)}, but {name} promises {scale}"
                )
        elif _is_wider(dtypes, promised):
            wide.append(call)
        else:
            yield contradicted(
                f"{words} of {some(call['layers'])} ran in {product(dtypes)}, but {name} promises {product(promised)}"
            )
    required = 1.0 if share >= ENOUGH else share
    if wide and flops(calls) - flops(wide) < required * flops(calls):
        layers = list(dict.fromkeys(layer for call in wide for layer in call["layers"]))
        ran = " and ".join(dict.fromkeys(product(call["operands"]) for call in wide))
        yield contradicted(
            f"{percent(flops(calls) - flops(wide), flops(calls))} of {words} ran in {product(promised)}, as {name} "
            f"promises; {some(layers)} ran in {ran}"
        )


def summary(reports: Sequence[Report]) -> str:
    """A sentence on what ran in the layers of `amp.gemm`; empty without `amp.gemm`."""
    gemm = reports[0]["rule"].get("gemm")
    if gemm is None:
        return ""
    eligible = [call for report in reports for call in split(report)[0]]
    parts: dict[str, list[str]] = {}
    for role in ROLES:
        promised = list(FORMATS[gemm["format"]].operands(role))
        calls = [call for call in eligible if call["role"] == role]
        done = flops(call for call in calls if call["operands"] == promised)
        parts.setdefault(product(promised), []).append(f"{percent(done, flops(calls))} of {IN_WORDS[role]}")
    shares = ", ".join(f"{dtypes} in {_listed(phrases)}" for dtypes, phrases in parts.items())
    every = flops(call for report in reports for call in report["calls"])
    count = len(gemm["layers"])
    layers = f"{count} linear layer{'s' * (count != 1)}, {percent(flops(eligible), every)} of all matrix FLOPs"
    left_out = ", ".join(f"{name} ({why})" for name, why in gemm.get("left_out", {}).items())
    return f"amp.gemm={gemm['format']}: {shares} of {layers}" + (f"; left out: {left_out}" if left_out else "")


def product(dtypes: Sequence[str]) -> str:
    """`float8_e5m2 x float8_e4m3fn`, or one dtype that both are."""
    return " x ".join(dict.fromkeys(dtypes)) or "unknown dtypes"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _is_wider(dtypes: Sequence[str], promised: Sequence[str]) -> bool:
    """Whether one of the operands is wider than promised, and none narrower."""
    pairs = [(_bits(dtype), _bits(other)) for dtype, other in zip(dtypes, promised, strict=False)]
    return all(bits >= other for bits, other in pairs) and any(bits > other for bits, other in pairs)


def _bits(dtype: str) -> int:
    """Of a floating-point dtype; 0 of any other, which stands for none."""
    return next((bits for start, bits in _BITS.items() if dtype.startswith(start)), 0)


_BITS = {"float4": 4, "float8": 8, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
