"""The floating-point tensors in whatever a model takes and gives, in another dtype."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch

CAST = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes that mixed precision moves between; float64 and complex tensors are left alone."""


def floats_to(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its half-precision and float32 tensors in `dtype`, at any depth of lists, tuples, named tuples,
    mappings and dataclasses. Each keeps its class; one without such a tensor is returned itself, and none is changed.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in CAST else value
    if isinstance(value, (list, tuple)):
        items = [floats_to(item, dtype) for item in value]
        if _same(items, value):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if type(value) is dict:
        values = {name: floats_to(item, dtype) for name, item in value.items()}
        return value if _same(values.values(), value.values()) else values
    if isinstance(value, MutableMapping):
        changed = _changed(value, dtype)
        result = copy.copy(value) if changed else value
        for name in changed:
            result[name] = changed[name]
        return result
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changed({field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}, dtype)
        copied = copy.copy(value) if changed else value
        for name in changed:
            object.__setattr__(copied, name, changed[name])  # a frozen one too
        return copied
    return value


def _changed(items: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    changed = {}
    for name, item in items.items():
        moved = floats_to(item, dtype)
        if moved is not item:
            changed[name] = moved
    return changed


def _same(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))
