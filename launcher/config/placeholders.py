"""Placeholders in a script's arguments: `{NAME}` stands for the value of `sweep.NAME`, filled in while planning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from amp_launcher.typed import SettingsError, nearest

KEY = "sweep."
NAME = re.compile(r"[A-Za-z0-9_-]+")
_ANY = re.compile(rf"\{{({NAME.pattern})\}}")


def filled(arguments: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments with each `{NAME}` replaced by its value and each `{{NAME}}` by `{NAME}`, for names in `values`.

    Other text is unchanged, and values are not scanned again. Raises `SettingsError` for a name in no argument.
    """
    if not values:
        return tuple(arguments)
    used = set()
    names = "|".join(map(re.escape, values))
    pattern = re.compile(rf"\{{(\{{(?:{names})\}})\}}|\{{({names})\}}")

    def fill(match: re.Match[str]) -> str:
        literal, name = match.groups()
        if literal:
            return literal
        used.add(name)
        return values[name]

    replaced = tuple(pattern.sub(fill, argument) for argument in arguments)
    for name in values:
        if name not in used:
            raise SettingsError(_unused(name, arguments), f"{KEY}{name}")
    return replaced


def _unused(name: str, arguments: Sequence[str]) -> str:
    others = sorted({other for argument in arguments for other in _ANY.findall(argument)} - {name})
    hint = nearest(name, others).replace("mean ", f"mean {KEY}")
    if others and not hint:
        hint = f"; there are {', '.join(f'{{{other}}}' for other in others)}"
    return f"{KEY}{name}: no argument of the script has {{{name}}}, as in -- --{name} {{{name}}}{hint}"


def labels(swept: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The swept keys and values of a cell. `sweep.NAME` is shortened to `NAME` unless another key has that name."""
    keys = {key for key, _ in swept}
    short = {key: key.removeprefix(KEY) for key in keys if key.removeprefix(KEY) not in keys}
    return tuple((short.get(key, key), value) for key, value in swept)


def part_of_name(swept: Sequence[tuple[str, Any]], values: Mapping[str, str]) -> str:
    """The part of a run's name for its swept placeholders, as `-lr0.1-layers2`."""
    names = [(key.removeprefix(KEY), value) for key, value in swept if key.removeprefix(KEY) in values]
    return "".join(re.sub(r"[^\w.+-]+", "-", f"-{name}{value}").rstrip("-") for name, value in names)
