"""Whatever a model takes and gives, with the tensors in it replaced. Standard library only."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any


def changed(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to each `kind` in it, at any depth of lists, tuples, named tuples, mappings and
    dataclasses. Each keeps its class; one in which `change` returned all as it was is returned itself, and none is
    changed in place."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [changed(item, kind, change) for item in value]
        if _same(items, value):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if type(value) is dict:
        values = {name: changed(item, kind, change) for name, item in value.items()}
        return value if _same(values.values(), value.values()) else values
    if isinstance(value, MutableMapping):
        new = _new_items(value, kind, change)
        result = copy.copy(value) if new else value
        for name in new:
            result[name] = new[name]
        return result
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        new = _new_items(fields, kind, change)
        copied = copy.copy(value) if new else value
        for name in new:
            object.__setattr__(copied, name, new[name])  # a frozen one too
        return copied
    return value


def _new_items(items: Mapping[str, Any], kind: type[Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    new = {}
    for name, item in items.items():
        moved = changed(item, kind, change)
        if moved is not item:
            new[name] = moved
    return new


def _same(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))
