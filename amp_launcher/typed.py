"""Frozen dataclasses from mappings, strictly typed.

Launcher and trainers both build their settings here, so a wrong key or value is refused with the same message by the
launcher, before anything is queued, and by a trainer that is started by hand.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard, TypeVar

from amp_launcher.shown import show as show

T = TypeVar("T")


class SettingsError(ValueError):
    """An invalid request: the message names the value, the choices and the place.

    `key` is the setting that is wrong, without it the one that the message begins with, as `batch=0 is too small`.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        named = re.match(r"([\w.]+)[=:]", message)
        self.key = key if key is not None else named[1] if named else ""


class NotText(SettingsError):
    """A value of another type for a key that takes text."""

    def __init__(self, key: str, value: Any) -> None:
        self.read = show(value) if isinstance(value, bool) else f"{show(value)}, {_name(type(value))}"
        super().__init__(
            f'{key} is text, and {show(value)} is {_name(type(value))}: quote it, as {key}: "{value}"', key
        )


def setting(default: Any, help: str, check: Callable[[str, Any], None] | None = None) -> Any:
    """A dataclass field with its one line of help, which `--help` and the documentation print.

    `build` calls `check` with the key and a value that is not null; it raises `SettingsError` for one that makes no
    sense. The constructor and `dataclasses.replace` don't call it: values that a person gives go through `build`.
    """
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata={"help": help, "check": check})
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def group(cls: type, help: str) -> Any:
    """A dataclass field that holds another settings dataclass."""
    return dataclasses.field(default_factory=cls, metadata={"help": help})


OTHER_NAMES = {
    **dict.fromkeys(("gpu", "nvidia"), "cuda"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("tf", "keras"), "tensorflow"),
    "pytorch": "torch",
    "fp8": "fp8-tensorwise",
    "paddlepaddle": "paddle",
}
"""Names that other programs have for choices of keys."""

NOT_HERE = {
    "fp8-delayed": "is TransformerEngine's, whose products no observer of torch sees, so that nothing proves it; say "
    "amp=fp8",
}
"""Choices that other programs have and that there are none of here -> how the sentence goes on."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean x?` for the closest of the choices, whatever their case, or nothing."""
    import difflib

    spelled = {choice.lower(): choice for choice in choices}
    if OTHER_NAMES.get(word.lower()) in spelled:
        return f"; did you mean {OTHER_NAMES[word.lower()]}?"
    close = difflib.get_close_matches(word.lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


@functools.cache
def fields_of(cls: type) -> dict[str, Any]:
    """Field names of a settings dataclass, with resolved annotations."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def described(cls: Any, prefix: str = "") -> Iterator[tuple[str, Any, str, Any]]:
    """Every key of a settings class, those of its groups too: dotted name, type, help, default."""
    types, default = fields_of(cls), cls()
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        if is_group(types[field.name]):
            yield from described(types[field.name], f"{key}.")
        else:
            yield key, types[field.name], field.metadata.get("help", ""), getattr(default, field.name)


def is_group(annotation: Any) -> TypeGuard[type]:
    return dataclasses.is_dataclass(annotation)


def is_text(annotation: Any) -> bool:
    """Whether the text after `=` is to be taken as typed: plain strings, optional ones included."""
    return annotation is str or options_of(annotation) == (str, type(None))


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """A `cls` from a mapping as YAML or JSON gives it; missing keys keep their defaults.

    Raises `SettingsError` for an unknown key, for a missing one without a default, and for a value that isn't of the
    field's type or fails its check.
    """
    kind: type = cls
    known = fields_of(kind)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in known and getattr(kind, "RETIRED", {}).get(name, known) == value:
            continue
        if name not in known:
            raise SettingsError(unknown_key(key, [f"{prefix}{other}" for other in known]), key)
        arguments[name] = convert(value, known[name], key)
        check = kind.__dataclass_fields__[name].metadata.get("check")  # type: ignore[attr-defined]  # of any dataclass
        if check is not None and arguments[name] is not None:
            check(key, arguments[name])
    for field in dataclasses.fields(kind):
        if field.name not in arguments and field.default is field.default_factory is dataclasses.MISSING:
            raise SettingsError(f"{prefix}{field.name} is missing", prefix.rstrip("."))
    return cls(**arguments)


def mapping(value: Any, key: str) -> Mapping[str, Any]:
    """The keys of a group, none for null. Raises `SettingsError` for any other value."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key}={show(value)} should be a group of keys", key)
    return value


def unknown_key(key: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return f"unknown key {key}{nearest(key, known)} (known here: {', '.join(known)})"


def convert(value: Any, annotation: Any, key: str) -> Any:
    """The value as the annotation wants it, or `SettingsError`. An int passes for a float, and `auto` for null where a
    text can't be meant."""
    if is_group(annotation):
        if dataclasses.is_dataclass(value) and isinstance(value, annotation):
            return value
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"{key}={show(value)} should be a group of keys: {', '.join(fields_of(annotation))}", key
            )
        return build(annotation, value, prefix=f"{key}.")
    if hasattr(annotation, "from_setting"):  # a type that reads what is given by itself
        return annotation.from_setting(value, key)
    origin = typing.get_origin(annotation)
    if origin is Literal:
        choices = typing.get_args(annotation)
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise SettingsError(not_a_choice(key, value, choices), key)
        return value
    options = options_of(annotation)
    if len(options) > 1:
        if type(None) in options and (value is None or (value == "auto" and str not in options)):
            return None
        errors = []
        for option in options:
            if option is type(None):
                continue
            try:
                return convert(value, option, key)
            except SettingsError as error:
                errors.append(error)
        raise errors[0]
    if origin is tuple:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
            raise SettingsError(f"{key}={show(value)} should be a list, as {key}=[a,b]", key)
        kinds, items = typing.get_args(annotation), list(value)
        kinds = kinds[:1] * len(items) if kinds[-1] is ... else kinds
        if len(kinds) != len(items):
            raise SettingsError(f"{key}={show(value)} should be a list of {len(kinds)}", key)
        return tuple(convert(*pair, f"{key}[{index}]") for index, pair in enumerate(zip(items, kinds, strict=True)))
    if origin is dict:
        value = {} if value is None else value  # null takes a group back
        if not isinstance(value, Mapping):
            raise SettingsError(f"{key}={show(value)} should be a mapping, as {key}.NAME=value", key)
        item = typing.get_args(annotation)[1]
        return {str(name): convert(inner, item, f"{key}.{name}") for name, inner in value.items()}
    if annotation is Any:
        return value
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise SettingsError(f"{key}={value} is beyond what a number can be", key) from None
    if isinstance(value, annotation) and (annotation is bool or not isinstance(value, bool)):
        if isinstance(value, str):
            refuse_control_characters(key, value)
        return value
    if annotation is str:
        raise NotText(key, value)
    quoted = ", without quotes" if isinstance(value, str) and _reads_as(value, annotation) else ""
    raise SettingsError(f"{key}={show(value)} should be {_name(annotation)}{quoted}", key)


def _reads_as(text: str, annotation: Any) -> bool:
    """Whether a text is of the type but for its quotes."""
    if annotation is bool:
        return text in ("true", "false")
    digits = text.removeprefix("-").replace(".", "", 1 if annotation is float else 0)
    return annotation in (int, float) and digits.isascii() and digits.isdecimal()


def not_a_choice(key: str, value: Any, choices: Iterable[Any]) -> str:
    value = show(value)
    if value in NOT_HERE:
        return f"{key}={value} {NOT_HERE[value]}"
    names = [str(choice) for choice in choices]
    return f"{key}={value} is not one of {', '.join(names)}{nearest(value, names)}"


def refuse_control_characters(key: str, value: str) -> None:
    """Refuse control characters and bytes that are not text: strings end up in scripts, headers and terminals, and
    Apptainer's shell takes U+0080 and U+0081 for ends of its input.

    Raises `SettingsError`."""
    for character in value:
        if ord(character) < 32 or 127 <= ord(character) < 160:
            raise SettingsError(f"{key} contains the control character {character!r}, which no setting may have", key)
        if "\ud800" <= character <= "\udfff":  # what Python makes of bytes in names that it can't decode
            raise SettingsError(f"{key} contains bytes that are not UTF-8 text", key)


def at_least(key: str, value: float, low: float) -> None:
    """Raise `SettingsError` for a number below `low`, or none."""
    if not value >= low or value == math.inf:
        raise SettingsError(f"{key}={show(value)} must be at least {low}{_and_finite(value)}", key)


def least(low: float, most: float = math.inf) -> Callable[[str, Any], None]:
    """The check of a setting whose value, or each of whose values, is at least `low`, and at most `most`."""

    def check_range(key: str, value: Any) -> None:
        for number in value if isinstance(value, tuple) else (value,):
            at_least(key, number, low)
            if number > most:
                raise SettingsError(f"{key}={show(value)} must be at most {most}", key)

    return check_range


def above_zero(key: str, value: float) -> None:
    """Raise `SettingsError` for a number that is not above zero, or not finite."""
    if not 0 < value < math.inf:
        raise SettingsError(f"{key}={show(value)} must be above zero{_and_finite(value)}", key)


def below_one(key: str, value: float) -> None:
    """Raise `SettingsError` for a number that is not from 0 up to, but not, 1."""
    if not 0 <= value < 1:
        raise SettingsError(f"{key}={show(value)} must be from 0 up to, but not, 1", key)


def _and_finite(value: float) -> str:
    return " and finite" if value == math.inf else ""


def plain(value: Any) -> Any:
    """Dataclasses and tuples as dictionaries and lists, ready for JSON."""
    if value is None or isinstance(value, (str, int, float)):  # most values by far
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain groups as one flat mapping of dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(leaves(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def options_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that there is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _name(annotation: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )
