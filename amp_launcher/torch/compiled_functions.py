"""Whether a function that torch.compile has compiled calls a module, found by what its code names."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch
from torch import nn


class CompiledFunction:
    """What is known of a function that was compiled."""

    def __init__(self, function: Any) -> None:
        is_plain = isinstance(function, (types.FunctionType, types.MethodType, functools.partial))
        self._function = function if is_plain else function.__call__
        self._names_module: bool | None = None

    def calls_module(self, args: Sequence[Any]) -> bool:
        """Whether it, or a function of the script that it calls, names a module or is given one, or an object with one.

        False where the objects that it names don't let themselves be read."""
        try:
            if self._names_module is None:
                self._names_module = any(_is_module(value) for value in _reachable(self._function, set()))
            return self._names_module or any(map(_is_module, args)) or self._is_given_module(args)
        except Exception:
            return False

    def _is_given_module(self, args: Sequence[Any]) -> bool:
        code = getattr(self._function, "__code__", None)
        names = frozenset(_names(code) if isinstance(code, types.CodeType) else ())
        given = [argument for argument in args if not isinstance(argument, torch.Tensor)]
        return any(_is_module(value) for argument in given for value in _attributes(argument, names, set()))


def _is_module(value: Any) -> bool:
    """By its type alone: a proxy may do anything when it is asked for its class."""
    return issubclass(type(value), nn.Module)


def _reachable(value: Any, seen: set[int]) -> Iterator[Any]:
    """Values that the code of a function names, and those of the functions among them."""
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if isinstance(value, functools.partial):
        for held in (value.func, *value.args, *value.keywords.values()):
            yield from _reachable(held, seen)
    elif isinstance(value, types.MethodType):
        yield value.__self__
        yield from _reachable(value.__func__, seen)
        yield from _attributes(value.__self__, set(_names(value.__func__.__code__)), seen)
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith("torch"):
        names = set(_names(value.__code__))
        held = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        held += [value.__globals__[name] for name in names if name in value.__globals__]
        for inner in (*held, *(value.__defaults__ or ())):
            yield from _reachable(inner, seen)
            yield from _attributes(inner, names, seen)


def _attributes(value: Any, names: Set[str], seen: set[int]) -> Iterator[Any]:
    """Those of an object that the code names, as `model` of `self`."""
    held = getattr(value, "__dict__", {})
    for name in names if isinstance(held, dict) and not isinstance(value, types.ModuleType) else ():
        if name in held:
            yield from _reachable(held[name], seen)
        elif isinstance(method := getattr(type(value), name, None), types.FunctionType):
            yield from _reachable(types.MethodType(method, value), seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True
