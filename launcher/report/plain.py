"""A document for a terminal: tables without borders, bars of blocks, no curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.report.document import Bars, Code, Document, Part, Prose, Table
from launcher.ui import tables

WIDTH, LEAST = 30, 10
"""Columns of the longest bar, and the least that is of use."""


def lines(document: Document, width: int = 0) -> Iterator[str]:
    """The lines, of at most `width` columns (0: no limit): a table that is wider goes without its spare columns, and
    one that is still wider is written as one block a row."""
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
        written = tables.table(part.header, rows, right=part.numbers, width=width, spare=part.spare)
        yield from written if not width or max(map(len, written)) <= width else _blocks(part.header, rows, width)
    elif isinstance(part, Bars):
        yield from _bars(part, width)
    elif isinstance(part, Prose):
        yield from _prose(part.text, width)
    elif isinstance(part, Code):
        yield from (tables.clean(line) for line in part.text.splitlines())


def _prose(text: str, width: int) -> list[str]:
    return tables.wrapped(tables.clean(text), width)


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for first, *others in rows:
        yield tables.clean(first)
        known = [(name, cell) for name, cell in zip(header[1:], others, strict=True) if cell not in ("", "-")]
        yield from (f"  {line}" for line in tables.pairs(known, width - 2))


def _bars(part: Bars, width: int) -> Iterator[str]:
    yield tables.clean(part.title)
    longest = max((bar.value or 0 for bar in part.bars), default=0) or 1
    texts = [(tables.clean(bar.label), tables.clean(bar.text)) for bar in part.bars]
    label, words = (max(len(pair[index]) for pair in texts) for index in (0, 1))
    room = min(WIDTH, width - label - words - 4) if width else WIDTH
    scale = max(room, LEAST) / longest
    drawn = ["█" * max(1, round(scale * bar.value)) if bar.value else "" for bar in part.bars]
    if room < LEAST:  # one under the other
        for (name, text), bar in zip(texts, drawn, strict=True):
            yield from tables.wrapped(f"{name}: {text}", width)
            yield from [f"  {bar}"] if bar else []
    else:
        filled = max(map(len, drawn))
        for (name, text), bar in zip(texts, drawn, strict=True):
            yield f"{name.ljust(label)}  {bar.ljust(filled)}  {text}".rstrip()
    if part.note:
        yield from _prose(part.note, width)
