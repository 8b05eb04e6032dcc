"""Checks of untrusted values: from another machine, another user's folder, a registry, a damaged file.

Pure functions take a decoded value and return it with its type and bounds checked, or raise `Refused`. Texts are
returned without control sequences.

Standard library only: both sides of a connection use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_TEXT = 4096
"""Characters of a text that may be shown: a reason, a path, an error."""
LONGEST_NAME = 255
"""Bytes of a file name, the limit of Linux and macOS."""
LONGEST_PATH = 1024
MOST_LISTED = 12
"""Choices that an error names."""
DEEPEST = 32
"""Components of a path."""
LARGEST_RECORD = 2**23
"""Bytes of a record of a run; its decoded objects take thirty times as much memory."""
LATEST = 2**63
"""The latest time of change of a file, in nanoseconds since 1970."""
LARGEST = 2**53
"""The default bound of whole numbers: JSON readers agree up to here."""


class Refused(ValueError):
    """A value is invalid. The message names it and says what is valid."""


# Values


def whole(value: Any, what: str, most: int = LARGEST, least: int = 0) -> int:
    """A whole number within bounds, both included. Raises `Refused`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise Refused(f"{what} is {_shown(value)} and should be a whole number from {least} to {most}")


def number(value: Any, what: str) -> float:
    """A finite number of at most `LARGEST` in size. Raises `Refused`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST:
        return float(value)
    raise Refused(f"{what} is {_shown(value)} and should be a number")


def text(value: Any, what: str, most: int = LONGEST_TEXT) -> str:
    """A text of at most so many characters, cleaned for a terminal, on one line. Raises `Refused`."""
    return clean(raw(value, what, most))


def lines(value: Any, what: str, most: int = LONGEST_TEXT) -> str:
    """`text` with several lines. Raises `Refused`."""
    return clean_lines(raw(value, what, most))


def raw(value: Any, what: str, most: int = LONGEST_TEXT) -> str:
    """A text of at most so many characters, not cleaned for a terminal. Raises `Refused`."""
    if isinstance(value, str) and len(value) <= most:
        return value
    raise Refused(f"{what} is {_shown(value)} and should be text of at most {most} characters")


def flag(value: Any, what: str) -> bool:
    """True or false. Raises `Refused`."""
    if isinstance(value, bool):
        return value
    raise Refused(f"{what} is {_shown(value)} and should be true or false")


def choice(value: Any, what: str, choices: Collection[str]) -> str:
    """One of the texts. Raises `Refused`."""
    if isinstance(value, str) and value in choices:
        return value
    expected = ", ".join(sorted(choices)) if len(choices) <= MOST_LISTED else "those that were requested"
    raise Refused(f"{what} is {_shown(value)} and should be one of {expected}")


def items(value: Any, what: str, most: int, least: int = 0) -> list[Any]:
    """A list of so many items. Raises `Refused`."""
    if isinstance(value, list) and least <= len(value) <= most:
        return value
    count = f"{least}" if least == most else f"{least} to {most}"
    raise Refused(f"{what} is {_shown(value)} and should be a list of {count} items")


def list_of(each: Callable[[Any, str], T], most: int, least: int = 0) -> Callable[[Any, str], tuple[T, ...]]:
    """The check of a list of so many items, each of which passes a check."""
    return lambda value, what: tuple(each(item, f"an item of {what}") for item in items(value, what, most, least))


def group(value: Any, what: str, *needed: str) -> dict[str, Any]:
    """An object with at least these keys. Raises `Refused`."""
    if not isinstance(value, dict):
        raise Refused(f"{what} is {_shown(value)} and should be an object")
    if missing := [key for key in needed if key not in value]:
        raise Refused(f"{what} has no {', '.join(missing)}")
    return value


# Names


def is_name(value: Any) -> bool:
    """Whether a value is a valid path component: printable, not hidden, not leading out of a folder."""
    return (
        isinstance(value, str)
        and value.isprintable()  # excludes controls, bidi controls, surrogates and invisible characters
        and not value.startswith(".")
        and "/" not in value
        and 0 < len(value.encode()) <= LONGEST_NAME
    )


def shown_name(value: str) -> str:
    """A name for a message, which whoever sent it may have made for a terminal."""
    return value if is_name(value) and value.isascii() and len(value) <= 60 else _shown(value)


def is_path(value: Any) -> bool:
    """Whether a value is a relative path of such components."""
    parts = value.split("/", DEEPEST) if isinstance(value, str) and len(value) <= LONGEST_PATH else []
    return 0 < len(parts) <= DEEPEST and all(map(is_name, parts))


def path(value: Any, what: str) -> str:
    """A relative path of such components. Raises `Refused`."""
    if is_path(value):
        return str(value)
    raise Refused(f"{what} is {_shown(value)} and should be a path inside the folder")


# Texts

# What a terminal acts on: control characters, 8-bit ones included, and characters that change the direction of text or
# start a line. Surrogates can't be written to it at all.
_CONTROL = dict.fromkeys(
    (
        *range(32),
        *range(127, 160),
        0x61C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ),
    "?",
)
# Complete control sequences (ECMA-48): `ESC [ 91 m`, and titles, which end at a bell or at `ESC \`. Removing only the
# control character would leave the rest in the text.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\x9d]*(?:\x07|\x1b\\|\x9c)")


def clean(text: str) -> str:
    """The text safe for a terminal: control sequences removed, other control characters replaced by `?`."""
    if text.isascii() and text.isprintable():  # the usual case: a listing has a hundred thousand texts
        return text
    return _SEQUENCE.sub("", text).translate(_CONTROL)


def clean_lines(text: str) -> str:
    """`clean` for several lines."""
    return "\n".join(map(clean, text.split("\n")))


# A program's output may contain text, tabs, line ends, colours, and the cursor moves of progress bars. Not titles,
# clipboard access, queries that the terminal would answer as if typed, or 8-bit controls. Bytes that are not UTF-8 can
# be such controls, so they are replaced too.
_PRINTED = re.compile(r"\x1b\[[0-9;]*[mKABCDG]|[\t\n\r\b]")
_PLAIN = re.compile(r"[\t\n\r\b]")


def clean_log(content: bytes, *, colours: bool = True) -> bytes:
    """A program's output, safe for a terminal; without `colours` and moves of the cursor for what may reach one."""
    printed = content.decode("utf-8", "replace")
    kept, at = [], 0
    for match in (_PRINTED if colours else _PLAIN).finditer(printed):
        kept += [clean(printed[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*kept, clean(printed[at:])]).encode()


def cleaned(value: Any) -> Any:
    """`clean` for all texts in a decoded value. Raises `Refused` for one that is nested too deep."""
    try:
        return _cleaned(value)
    except RecursionError:
        raise Refused("the value is nested too deep") from None


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return value


def _shown(value: Any) -> str:
    """The beginning of a value in ASCII, for a message."""
    if isinstance(value, (list, dict)):
        return f"a{' list' if isinstance(value, list) else 'n object'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return "a huge number"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
