"""JSON values as the records of `schema`: what is of another type is left out and can be named; nothing is raised.

Folders are read by screens that have to show what they can: a file that was damaged, or written by another version,
costs the fields that are wrong in it and nothing else.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
LARGEST = 1e300
"""No quantity of a run comes near it, and sums of smaller ones are finite."""
_WRONG = object()
_Decoder = Callable[[Any, str, list[str]], Any]
"""From a value, the place that it stands in and the list of what is wrong to the decoded value, or `_WRONG`."""


def decode(cls: type[T], values: Mapping[str, Any], only: Collection[str] = ()) -> tuple[T, list[str]]:
    """The record, and what was left out of it: the place, and what should stand there.

    `only` names the fields that are wanted, where not all are: ten thousand files take a second. Fields of a newer
    version are passed over.
    """
    wrong: list[str] = []
    return _record(cls, values, "", wrong, only), wrong


def _record(cls: type[T], values: Mapping[str, Any], place: str, wrong: list[str], only: Collection[str] = ()) -> T:
    decoded = {}
    fields = _fields(cls)
    for name, value in values.items():
        if value is None or name not in fields or (only and name not in only):
            continue
        exact, decoder, called = fields[name]
        if type(value) is not exact or not (exact in _WITHOUT_RANGE or -LARGEST < value < LARGEST):
            value = decoder(value, f"{place}{name}.", wrong)
            if value is _WRONG:
                wrong.append(f"{place}{name} is not {called}")
                continue
        decoded[name] = value
    return cls(**decoded)


def _fields(cls: type) -> dict[str, tuple[Any, _Decoder, str]]:
    """Of each field its plain type, what decodes a value that isn't of that very type, and what a value is called."""
    if cls not in _FIELDS:
        _FIELDS[cls] = {name: (_plain(hint), *_decoder(hint)) for name, hint in typing.get_type_hints(cls).items()}
    return _FIELDS[cls]


_FIELDS: dict[type, dict[str, tuple[Any, _Decoder, str]]] = {}
_WITHOUT_RANGE = (str, bool)


def _plain(hint: Any) -> Any:
    """The type without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _decoder(hint: Any) -> tuple[_Decoder, str]:
    """What decodes a value of that type, and what such a value is called."""
    hint = _plain(hint)
    arguments = typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Any:
        return lambda value, place, wrong: value, "anything"
    if typing.get_origin(hint) is tuple and typing.get_origin(arguments[0]) is tuple:
        return _pairs, "pairs of a name and a value"
    if typing.get_origin(hint) is tuple:
        return functools.partial(_list, *_decoder(arguments[0])), "a list"
    if typing.get_origin(hint) is not None:
        return functools.partial(_mapping, *_decoder(arguments[1])), "an object"
    return functools.partial(_object, hint), "an object"


def _scalar(*kinds: type) -> _Decoder:
    def decoder(value: Any, place: str, wrong: list[str]) -> Any:
        # NaN is in no range.
        valid = type(value) in kinds and (type(value) in _WITHOUT_RANGE or -LARGEST < value < LARGEST)
        return value if valid else _WRONG

    return decoder


_PLAIN: dict[type, tuple[_Decoder, str]] = {
    str: (_scalar(str), "text"),
    bool: (_scalar(bool), "true or false"),
    int: (_scalar(int), "a whole number"),
    float: (_scalar(float, int), "a number"),
}


def _pairs(value: Any, place: str, wrong: list[str]) -> Any:
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return tuple((str(name), item) for name, item in value)
    return _WRONG


def _list(decoder: _Decoder, called: str, value: Any, place: str, wrong: list[str]) -> Any:
    """All items or none: with one left out, the others would be taken for what they are not."""
    if not isinstance(value, list):
        return _WRONG
    inside: list[str] = []
    items = tuple(decoder(item, "", inside) for item in value)
    if _WRONG not in items and not inside:
        return items
    wrong.append(f"{place[:-1]} holds what is not {called}")
    return ()


def _mapping(decoder: _Decoder, called: str, value: Any, place: str, wrong: list[str]) -> Any:
    if not isinstance(value, dict):
        return _WRONG
    decoded = {key: decoder(item, f"{place}{key}.", wrong) for key, item in value.items() if item is not None}
    wrong += [f"{place}{key} is not {called}" for key, item in decoded.items() if item is _WRONG]
    return {key: item for key, item in decoded.items() if item is not _WRONG}


def _object(cls: type, value: Any, place: str, wrong: list[str]) -> Any:
    if not isinstance(value, dict):
        return _WRONG
    if any(value.get(name) is None for name in _fields(cls).keys() - cls._field_defaults.keys()):  # type: ignore[attr-defined]
        return _WRONG
    try:
        return _record(cls, value, place, wrong)
    except TypeError:  # a field that it can't be without was wrong, and is named
        return None
