"""Plain text tables: columns two blanks apart, no borders, fit for cut and grep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from launcher.admit import clean as clean

SHORTEST, LEAST = 16, 8
"""Shortest length of a cut column while other columns can be left out, and when none can."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of a table, without blanks at their ends; columns in `right` are aligned to the right."""
    return _lines([[clean(cell) for cell in row] for row in (header, *rows)], right)


def _lines(cells: Sequence[Sequence[str]], right: frozenset[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
    width: int,
    spare: Sequence[str],
) -> list[str]:
    """The same in at most `width` columns (0: no limit), with a line that names what there was no room for.

    The last column is cut, down to `SHORTEST`; then the columns in `spare` are left out, the first one first.
    """
    kept = list(range(len(header)))
    cells = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in kept]

    def room() -> int:
        """What is left for the last column."""
        return width - sum(widths[column] + 2 for column in kept[:-1])

    for name in spare:
        if not width or room() >= min(widths[kept[-1]], SHORTEST):
            break
        kept.remove(list(header).index(name))
    last = kept[-1]
    if width and room() >= LEAST:
        cells = [[*row[:last], cut(row[last], room())] for row in cells]
    shown = [[row[column] for column in kept] for row in cells]
    lines = _lines(shown, frozenset(kept.index(number) for number in right if number in kept))
    left_out = [name for column, name in enumerate(header) if column not in kept]
    note = f"(no room for {', '.join(left_out)} in {width} columns)"
    return [*lines, *wrapped(note, width)] if left_out else lines


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns (0: no limit), but for words that are longer."""
    if not width or len(text) <= width:
        return [text]
    import textwrap  # which a listing that has room does without

    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def width_of(stream: TextIO) -> int:
    """Columns of the terminal that the stream is; 0, no limit, where its reader is a file or another program."""
    if not stream.isatty():
        return 0
    import shutil  # which programs that read a listing do without

    return shutil.get_terminal_size().columns


def pairs(rows: Sequence[tuple[str, str]], width: int = 0) -> list[str]:
    """Lines of names and values, the values under each other in at most `width` columns (0: no limit); a value of
    several lines keeps them there."""
    names = max((len(name) for name, _ in rows), default=0)
    room = max(SHORTEST, width - names - 2) if width else 0
    lines = []
    for name, value in rows:
        first, *more = [part for line in value.splitlines() for part in wrapped(clean(line), room)] or [""]
        lines.append(f"{name.ljust(names)}  {first}".rstrip())
        lines += [f"{' ' * names}  {line}".rstrip() for line in more]
    return lines


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
