"""A document as Markdown, as GitHub and most others read it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.report.document import Bars, Code, Curves, Document, Part, Prose, Table
from launcher.ui import tables

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")


def render(document: Document) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    yield f"# {escape(document.title)}"
    for sentence in document.lead:
        yield from ("", escape(sentence))
    for section in document.sections:
        parts = [part for part in section.parts if not isinstance(part, (Bars, Curves))]
        if not parts:
            continue
        yield from ("", f"## {escape(section.title)}")
        for part in parts:
            yield ""
            yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield f"| {' | '.join(escape(cell) for cell in part.header)} |"
        yield f"| {' | '.join('---:' if index in part.numbers else '---' for index in range(len(part.header)))} |"
        for row in part.rows:
            yield f"| {' | '.join(escape(cell.text) for cell in row)} |"
    elif isinstance(part, Code):
        # A fence longer than any run of backticks in the text.
        fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall(r"`+", part.text)), default=0))
        yield from (fence, *(tables.clean(line) for line in part.text.splitlines()), fence)
    elif isinstance(part, Prose):
        yield escape(part.text)


def escape(text: str) -> str:
    """The text so that Markdown shows it as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", tables.clean(text))
