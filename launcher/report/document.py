"""The content of a report as values, the same for a terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

COLOURS = 8
"""Number of colours. Curves beyond them have the same colours, dashed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One field of a table."""

    text: str
    value: float | str | None = None
    """The sort key, a number where it is one; None sorts last."""
    link: str = ""
    """The address of its own page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under a header, as wide as it."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int] = frozenset()
    """Columns of numbers, which are aligned to the right."""
    spare: tuple[str, ...] = ()
    """Columns that a narrow terminal does without, the first one first; their content is shown elsewhere too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar. Where it has no value, its text says why."""

    label: str
    value: float | None
    text: str
    colour: int | None
    """The same number is the same run in all charts of a report; None is grey."""
    interval: tuple[float, float] | None = None
    """Where the value lies, with 95% confidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Lengths from zero, one under the other."""

    title: str
    bars: tuple[Bar, ...]
    note: str = ""
    mark: float | None = None
    """A value that is drawn through all bars, to compare them with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve: points [(x, y)] in the order of x."""

    label: str
    colour: int | None
    points: tuple[tuple[float, float], ...]
    marks: tuple[float, ...] = ()
    """Places on the x axis to mark below the curve."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Curves over one pair of axes."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    steps: bool = False
    """Draw steps: each value holds until the next one."""
    unit: str = ""
    """Of the y axis: `bytes` writes it as sizes, `zero` begins it there, `percent` also ends it at 100, `log2` spaces
    it by powers of two."""
    note: str = ""
    span: tuple[float, float] | None = None
    """Where the x axis begins and ends; None is where the points do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Preformatted text, such as commands."""

    text: str


Part = Table | Bars | Curves | Prose | Code


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Parts under a title."""

    title: str
    parts: tuple[Part, ...]
    brief: bool = True
    """Whether a terminal shows it too, not only the page and Markdown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A report."""

    title: str
    lead: tuple[str, ...]
    """The first sentences: the findings."""
    sections: tuple[Section, ...]


class Column(NamedTuple):
    """A column of a table that is made of columns."""

    name: str
    cells: Sequence[Cell]
    number: bool = False


def text(words: str) -> Cell:
    """A cell that sorts by its text."""
    return Cell(text=words or "-", value=words or None)


def numeric(value: float | None, written: str) -> Cell:
    """A cell with a number, written as people read it."""
    return Cell(text="-" if value is None else written, value=value)


def texts(name: str, values: Iterable[str]) -> Column:
    return Column(name, list(map(text, values)))


def numbers(name: str, values: Iterable[float | None], write: Callable[[Any], str] = str) -> Column:
    """A column of numbers, None where one is not known."""
    return Column(name, [numeric(value, "" if value is None else write(value)) for value in values], number=True)


def shared(table: Table) -> Iterator[Table | Prose]:
    """The table without the columns whose cells are all the same, and a sentence with those."""
    cells = list(zip(*table.rows, strict=True)) if len(table.rows) > 1 else []
    same = [index for index, column in enumerate(cells) if len({cell.text for cell in column}) == 1]
    names = [f"{table.header[index]} {cells[index][0].text}" for index in same if cells[index][0].text != "-"]
    if names:
        yield Prose(text=f"The same in all: {'; '.join(names)}.")
    kept = [index for index in range(len(table.header)) if index not in same]
    if len(kept) == len(table.header):
        yield table
    elif len(kept) > 1:
        rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
        numbers = frozenset(place for place, index in enumerate(kept) if index in table.numbers)
        yield Table(header=tuple(table.header[index] for index in kept), rows=rows, numbers=numbers)


def of_columns(columns: Sequence[Column], spare: Sequence[str] = ()) -> Table:
    """A table of the columns that have any value; a narrow terminal does without those in `spare`, the first one
    first."""
    kept = [column for column in columns if any(cell.text != "-" for cell in column.cells)]
    names = tuple(column.name for column in kept)
    return Table(
        header=names,
        rows=tuple(zip(*(column.cells for column in kept), strict=True)),
        numbers=frozenset(index for index, column in enumerate(kept) if column.number),
        spare=tuple(name for name in spare if name in names),
    )
