"""Plain text tables: columns two blanks apart, no borders, fit for cut and grep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TextIO

from launcher.admit import clean as clean

SHORTEST, LEAST = 16, 8
"""Shortest length of a cut column while other columns can be left out, and when none can."""


class Column(NamedTuple):
    """A column of a table: its name and a cell for each row."""

    name: str
    cells: Sequence[str]
    right: bool = False
    """Whether it is aligned to the right, as numbers are."""

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int = 0,
    spare: Sequence[str] = (),
) -> list[str]:
    """`lines` of rows; columns in `right` are aligned to the right."""
    return lines([Column(name, [row[i] for row in rows], i in right) for i, name in enumerate(header)], width, spare)


def lines(columns: Sequence[Column], width: int = 0, spare: Sequence[str] = ()) -> list[str]:
    """Lines of a table, without blanks at their ends, in at most `width` columns of text (0: no limit); what there was
    no room for is named below it."""
    kept = fit(columns, width, spare)
    rows = ["  ".join(row).rstrip() for row in zip(*((column.name, *column.cells) for column in kept), strict=True)]
    shown = {column.name.strip() for column in kept}
    left_out = [column.name for column in columns if column.name in spare and column.name not in shown]
    note = f"(no room for {', '.join(left_out)} in {width} columns)"
    return [*rows, *wrapped(note, width)] if left_out else rows


def fit(
    columns: Sequence[Column], width: int, spare: Sequence[str], *, cut_first: bool = False, shortest: int = SHORTEST
) -> list[Column]:
    """The columns that fit, padded. The last one, or the first one if `cut_first`, is cut, down to `shortest`; then
    those in `spare` are left out, the first one first."""
    # A name may be text of a record too: the unit of a rate.
    kept = [Column(clean(column.name), [clean(cell) for cell in column.cells], column.right) for column in columns]
    to_cut = 0 if cut_first else -1

    def room() -> int:
        """What is left for the column that is cut."""
        return width - sum(column.width + 2 for column in kept) + kept[to_cut].width + 2

    for name in spare:
        if not width or room() >= min(kept[to_cut].width, shortest):
            break
        kept = [column for column in kept if column.name != name]
    if width and (left := room()) >= LEAST:
        name, cells, right = kept[to_cut]
        kept[to_cut] = Column(cut(name, left), [cut(cell, left) for cell in cells], right)
    return [_padded(column, column.width) for column in kept]


def _padded(column: Column, width: int) -> Column:
    pad = str.rjust if column.right else str.ljust
    return Column(pad(column.name, width), [pad(cell, width) for cell in column.cells], column.right)


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
