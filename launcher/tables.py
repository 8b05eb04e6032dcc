"""Plain text tables: columns two blanks apart, no borders, so that they can be cut and searched."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a terminal acts on: control characters, those of 8 bits included, and those that turn the direction of text or
# begin a line.
_CONTROL = dict.fromkeys(
    (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "?"
)

# Colours and the like, whole (ECMA-48): `ESC [ 91 m`, and titles, which end at a bell or at `ESC \`. Alone, the control
# character in front would go and the rest would stand in the text.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of a table, without blanks at their ends; columns in `right` are aligned to the right."""
    cells = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of names and values, the values under each other; a value of several lines keeps them there."""
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        lines.append(f"{name.ljust(width)}  {clean(first)}".rstrip())
        lines += [f"{' ' * width}  {clean(each)}".rstrip() for each in more]
    return lines


def clean(text: str) -> str:
    """The text with nothing that a terminal would act on: colours are left out, other control characters are `?`."""
    return _SEQUENCE.sub("", text).translate(_CONTROL)
