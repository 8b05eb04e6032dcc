"""Sums over the observed calls of a step, and their names in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from amp_launcher.shown import some

Call = Mapping[str, Any]
"""An entry of a report's `calls` (`amp_launcher.precision.observation`)."""


def flops(calls: Iterable[Call]) -> int:
    return sum(call["flops"] for call in calls)


def is_half(dtype: str) -> bool:
    """Or narrower."""
    return dtype in ("float16", "bfloat16") or is_narrow(dtype)


FLOAT32_UNDER_AUTOCAST = frozenset(("cdist", "matrix_exp", "linalg_matrix_exp"))
"""Functions of torch whose products autocast leaves in float32."""


def is_apart(call: Call, rule: Mapping[str, Any]) -> bool:
    """Whether the call can't run in half precision, so that it is counted apart: no complex type is half, torch
    computes attention that it has no fused kernel for as float32 products, and some functions under autocast."""
    if call["dtype"].startswith("complex"):
        return True
    if len(call["functions"]) == 1 and FLOAT32_UNDER_AUTOCAST.issuperset(call["functions"]):
        return bool(call["dtype"] == "float32" and rule["level"] == "o1")
    attention = call["functions"] == ["scaled_dot_product_attention"] and call["operation"] in ("bmm", "baddbmm")
    asked = (*rule["deny"], *rule.get("either", ()))
    denied = rule["level"] == "o0" or "scaled_dot_product_attention" in asked
    return attention and call["dtype"] == "float32" and not denied


def is_narrow(dtype: str) -> bool:
    """Whether it is a floating-point dtype of eight bits or fewer."""
    return dtype.startswith(("float8", "float4"))


def describe(calls: Iterable[Call], most: int = 3) -> str:
    """`linear in float32 (12 calls), ...`, the most work first."""
    work: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for call in calls:
        name = call["functions"][0] if len(call["functions"]) == 1 else call["operation"]
        work[name, call["dtype"]] += call["flops"]
        counts[name, call["dtype"]] += call["calls"]
    parts = [f"{name} in {dtype} ({times(counts[name, dtype])})" for (name, dtype), _ in work.most_common()]
    return some(parts, most)


def percent(part: int, total: int) -> str:
    """Rounded down, so that only all of it is 100.0%. Of nothing it is 0.0%."""
    return f"{1000 * part // total / 10 if total else 0.0}%"


def times(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def phase(backward: bool) -> str:
    return "backward" if backward else "forward"
