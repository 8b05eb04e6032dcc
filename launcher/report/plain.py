"""A document for a terminal: tables without borders, bars of blocks, no curves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from launcher import tables
from launcher.report.document import Bars, Code, Document, Part, Prose, Table

WIDTH = 30
"""Columns of the longest bar."""


def lines(document: Document, width: int = 0) -> Iterator[str]:
    """The lines, of at most `width` columns (0: no limit): a table that is wider is written as one block a row."""
    yield tables.clean(document.title)
    for sentence in document.lead:
        yield from _prose(sentence, width)
    for section in document.sections:
        if not section.brief:
            continue
        yield ""
        yield section.title.upper()
        for index, part in enumerate(section.parts):
            if index and not isinstance(part, Prose):
                yield ""
            yield from _part(part, width)


def _part(part: Part, width: int) -> Iterator[str]:
    if isinstance(part, Table):
        rows = [[cell.text for cell in row] for row in part.rows]
        found = tables.table(part.header, rows, right=part.numbers)
        yield from found if not width or max(map(len, found)) <= width else _blocks(part.header, rows)
    elif isinstance(part, Bars):
        yield from _bars(part)
    elif isinstance(part, Prose):
        yield from _prose(part.text, width)
    elif isinstance(part, Code):
        yield from (tables.clean(each) for each in part.text.splitlines())


def _prose(text: str, width: int) -> list[str]:
    clean = tables.clean(text)
    return textwrap.wrap(clean, width, break_on_hyphens=False) if width and clean else [clean]


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for first, *others in rows:
        yield tables.clean(first)
        told = [(name, cell) for name, cell in zip(header[1:], others, strict=True) if cell not in ("", "-")]
        yield from (f"  {each}" for each in tables.pairs(told))


def _bars(part: Bars) -> Iterator[str]:
    yield f"{part.title}{f' ({part.note})' if part.note else ''}"
    longest = max((each.value or 0 for each in part.bars), default=0) or 1
    rows = [
        (each.label, "█" * max(1, round(WIDTH * each.value / longest)) if each.value else "", each.text)
        for each in part.bars
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for label, bar, words in rows:
        yield tables.clean(f"{label.ljust(widths[0])}  {bar.ljust(widths[1])}  {words}").rstrip()
