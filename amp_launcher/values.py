"""Values as people type them after `key=`, read by the type of the key: in the launcher and in trainers alike."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

from amp_launcher.typed import SettingsError, convert, fields_of, is_group, is_text, options_of

_QUOTED = re.compile(r"""(?s)"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
CHOICE = re.compile(r"(?s)choice\((.*)\)")
"""A list of values, of which the launcher makes a sweep."""
_WHOLE = re.compile(r"[+-]?\d+(?:_\d+)*", re.ASCII)


def from_text(text: str, annotation: Any, key: str) -> Any:
    """The value as the annotation wants it. Raises `SettingsError`."""
    return convert(read(text, annotation, key), annotation, key)


def read(text: str, annotation: Any, key: str) -> Any:
    """The value as YAML or JSON would give it. A text that can't be of the type stays a text, for `convert` to refuse.

    Text is taken as typed, but `null` where it may be none; of anything else, blanks around it don't count. A list is
    [a,b], a group {name: value}. Raises `SettingsError` for one that can't be taken apart.
    """
    if is_text(annotation):
        if CHOICE.fullmatch(text):
            raise SettingsError(f"{key}={text} lists values, and {key} takes one here", key)
        return None if text == "null" and annotation is not str else text
    text = text.strip()
    options = options_of(annotation)
    kind = options[0]
    if text == "null" and (type(None) in options or typing.get_origin(kind) is dict):
        return None
    if text[:1] == "[" and typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return [_read_part(part, item, key) for part in _parts(text, "]", key)]
    if text[:1] == "{" and (typing.get_origin(kind) is dict or is_group(kind)):
        return dict(_pairs(_parts(text, "}", key), kind, key))
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is not bool and isinstance(kind, type) and issubclass(kind, (int, float)) and text.isascii():
        return _number(text, kind, key)
    return text


def _number(text: str, kind: type, key: str) -> int | float | str:
    digits = _WHOLE.fullmatch(text)
    try:
        return int(text) if digits else text if issubclass(kind, int) else float(text)
    except ValueError:
        if digits:
            raise SettingsError(f"{key} has {len(text)} digits, more than can be read", key) from None
        return text


def _parts(text: str, closing: str, key: str) -> list[str]:
    """What stands in the brackets that a text begins and ends with."""
    try:
        parts, rest = split(text[1:], closing)
    except SettingsError as error:
        raise SettingsError(f"{key}={text}: {error}", key) from None
    if rest:
        raise SettingsError(f"{key}={text}: nothing may follow the closing {closing}", key)
    return parts


def _pairs(parts: list[str], kind: Any, key: str) -> Iterator[tuple[str, Any]]:
    for part in parts:
        name, colon, value = (piece.strip() for piece in part.partition(":"))
        if not colon or not name:
            raise SettingsError(f"{key}: {part} should be NAME: value", key)
        # `convert` refuses a name that the group doesn't have.
        annotation = fields_of(kind).get(name, str) if is_group(kind) else typing.get_args(kind)[1]
        yield name, _read_part(value, annotation, f"{key}.{name}")


def _read_part(part: str, annotation: Any, key: str) -> Any:
    if not is_text(annotation):
        return read(part, annotation, key)
    return None if part == "null" and annotation is not str else unquoted(part)


def split(text: str, closing: str = "") -> tuple[list[str], str]:
    """The parts of a text between commas, up to the bracket that closes it, and what follows that.

    Parts are as typed, without blanks around them. No comma in brackets, or in quotes that begin a word, separates.
    Raises `SettingsError` for an empty part and an open bracket.
    """
    parts: list[str] = []
    part, open_brackets, place = "", "", 0
    while place < len(text):
        character = text[place]
        if quoted := _QUOTED.match(text, place) if not part or part[-1] in " =(,[{:" else None:
            part += quoted[0]
            place = quoted.end()
            continue
        place += 1
        if not open_brackets and character == closing:
            return _complete(parts, part), text[place:].strip()
        if not open_brackets and character == ",":
            parts.append(part)
            part = ""
            continue
        part += character
        if character in _CLOSING:
            open_brackets += character
        elif open_brackets and character == _CLOSING[open_brackets[-1]]:
            open_brackets = open_brackets[:-1]
    if closing or open_brackets:
        raise SettingsError("a bracket is not closed; write [a,b], and quote an item that holds an odd one: ['a[b',c]")
    return _complete(parts, part), ""


def _complete(parts: list[str], last: str) -> list[str]:
    stripped = [part.strip() for part in (*parts, last)]
    if stripped == [""]:
        return []
    if "" in stripped:
        raise SettingsError("the list has an empty item; write a,b, and an empty text as ''")
    return stripped


def unquoted(part: str) -> str:
    """The text of a part: quotes around the whole of it are not part of it."""
    if _QUOTED.fullmatch(part) is None:
        return part
    return re.sub(rf"\\([\\{part[0]}])", r"\1", part[1:-1])
