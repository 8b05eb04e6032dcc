"""JSON values as named tuples, each field of its type and, where that is `Annotated` with a check of `admit`, in its
bounds.

`decode` leaves out what is wrong and names it: folders are read by screens that have to show what they can, so a file
that was damaged, or written by another version, costs the fields that are wrong in it and nothing else. `admitted` is
for what others say, and refuses it.
"""

from __future__ import annotations

import contextlib
import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar

from launcher import admit
from launcher.admit import Refused

T = TypeVar("T")
LARGEST = 1e300
"""No quantity of a run comes near it, and sums of smaller ones are finite."""
_WRONG = object()
_Decoder = Callable[[Any, str, list[str]], Any]
"""From a value, the place that it stands in and the list of what is wrong to the decoded value, or `_WRONG`."""


def decode(cls: type[T], values: Mapping[str, Any], only: Collection[str] = ()) -> tuple[T, list[str]]:
    """The record, and what was left out of it: the place, and what should stand there. `only` names the fields that are
    wanted, where not all are: ten thousand files take a second. Fields of a newer version are passed over."""
    wrong: list[str] = []
    return _record(cls, values, "", wrong, only), wrong


def admitted(cls: type[T], value: Any, what: str) -> T:
    """The record that `value` is: an object, or a list of all its fields in their order. Raises `Refused` for one that
    lacks a field without a default, or has a wrong one."""
    values = _named(cls, value)
    required = [name for name in _fields(cls) if name not in cls._field_defaults]  # type: ignore[attr-defined]
    admit.group(values, what, *required)
    wrong: list[str] = []
    record = None
    with contextlib.suppress(TypeError):  # a field that it can't be without was wrong, or is null
        record = _record(cls, values, f"{what}.", wrong)
    if record is None or wrong:
        raise Refused(wrong[0] if wrong else f"{what} has null for one of {', '.join(required)}")
    return record


def _record(cls: type[T], values: Mapping[str, Any], place: str, wrong: list[str], only: Collection[str] = ()) -> T:
    decoded = {}
    fields = _fields(cls)
    for name, value in values.items():
        if name not in fields or (only and name not in only):
            continue
        exact, decoder, called, checked = fields[name]
        if value is None and not checked:
            continue
        if type(value) is not exact or exact not in _WITHOUT_RANGE:
            value = decoder(value, f"{place}{name}.", wrong)
            if value is _WRONG:
                wrong.append(f"{place}{name} is not {called}")
                continue
        decoded[name] = value
    return cls(**decoded)


def _fields(cls: type) -> dict[str, tuple[Any, _Decoder, str, bool]]:
    """Of each field its plain type, what decodes a value of another type, what a value is called, and
    whether null has to pass a check as well."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls, include_extras=True)
        checked = (Annotated, Literal)
        _FIELDS[cls] = {
            name: (_plain(hint), *_decoder(hint), typing.get_origin(hint) in checked) for name, hint in hints.items()
        }
    return _FIELDS[cls]


def _named(cls: type, value: Any) -> Any:
    """The fields of a record that is given as a list, by their names."""
    fields = _fields(cls)
    return dict(zip(fields, value, strict=True)) if isinstance(value, list) and len(value) == len(fields) else value


_FIELDS: dict[type, dict[str, tuple[Any, _Decoder, str, bool]]] = {}
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
    if typing.get_origin(hint) is Annotated:
        return functools.partial(_checked, hint.__metadata__[0]), "valid"
    if typing.get_origin(hint) is Literal:
        return functools.partial(_checked, functools.partial(admit.choice, choices=arguments)), "valid"
    if hint is Any:
        return lambda value, place, wrong: value, "anything"
    if typing.get_origin(hint) is tuple and typing.get_origin(arguments[0]) is tuple:
        return _pairs, "pairs of a name and a value"
    if typing.get_origin(hint) is tuple:
        return functools.partial(_list, *_decoder(arguments[0])), "a list"
    if typing.get_origin(hint) is not None:
        return functools.partial(_mapping, *_decoder(arguments[1])), "an object"
    return functools.partial(_object, hint), "an object"


def _checked(check: Callable[[Any, str], Any], value: Any, place: str, wrong: list[str]) -> Any:
    try:
        return check(value, place[:-1])
    except Refused as error:
        wrong.append(str(error))
        return _WRONG


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
_SCALARS = [called for _, called in _PLAIN.values()]


def _pairs(value: Any, place: str, wrong: list[str]) -> Any:
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return tuple((str(name), item) for name, item in value)
    return _WRONG


def _list(decoder: _Decoder, called: str, value: Any, place: str, wrong: list[str]) -> Any:
    """All items or none: with one left out, the others would be read as what they are not."""
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
    some = {key: item for key, item in value.items() if item is not None or called not in _SCALARS}
    decoded = {key: decoder(item, f"{place}{admit.shown_name(key)}.", wrong) for key, item in some.items()}
    wrong += [f"{place}{admit.shown_name(key)} is not {called}" for key, item in decoded.items() if item is _WRONG]
    return {key: item for key, item in decoded.items() if item is not _WRONG}


def _object(cls: type, value: Any, place: str, wrong: list[str]) -> Any:
    value = _named(cls, value)
    if not isinstance(value, dict):
        return _WRONG
    if any(value.get(name) is None for name in _fields(cls).keys() - cls._field_defaults.keys()):  # type: ignore[attr-defined]
        return _WRONG
    try:
        return _record(cls, value, place, wrong)
    except TypeError:  # a field that it can't be without was wrong, and is named
        return None
