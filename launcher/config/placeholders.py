"""Placeholders in a script's arguments: `{NAME}` stands for the value of `sweep.NAME`, filled in while planning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.typed import SettingsError, nearest

KEY = "sweep."
NAME = re.compile(r"[A-Za-z0-9_-]+")
_ANY = re.compile(rf"\{{({NAME.pattern})\}}")


def filled(arguments: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments with the value in the place of each `{NAME}`, and `{NAME}` in the place of each `{{NAME}}`, for the
    names that have a value. All else stays as it is, values too. Raises `SettingsError` for a name that none has.
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

    made = tuple(pattern.sub(fill, argument) for argument in arguments)
    for name in values:
        if name not in used:
            raise SettingsError(_unused(name, arguments), f"{KEY}{name}")
    return made


def _unused(name: str, arguments: Sequence[str]) -> str:
    there = sorted({found for argument in arguments for found in _ANY.findall(argument)} - {name})
    hint = nearest(name, there).replace("mean ", f"mean {KEY}")
    if there and not hint:
        hint = f"; there are {', '.join(f'{{{found}}}' for found in there)}"
    return f"{KEY}{name}: no argument of the script has {{{name}}}, as in -- --{name} {{{name}}}{hint}"


def labels(swept: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """What differs between the cells of a sweep, placeholders by their bare names where no key is called so."""
    keys = {key for key, _ in swept}
    short = {key: key.removeprefix(KEY) for key in keys if key.removeprefix(KEY) not in keys}
    return tuple((short.get(key, key), value) for key, value in swept)


def part_of_name(swept: Sequence[tuple[str, Any]], values: Mapping[str, str]) -> str:
    """What a run's name has of the swept placeholders, as `-lr0.1-layers2`."""
    names = [(key.removeprefix(KEY), value) for key, value in swept if key.removeprefix(KEY) in values]
    return "".join(re.sub(r"[^\w.+-]+", "-", f"-{name}{value}").rstrip("-") for name, value in names)
