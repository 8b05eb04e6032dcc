"""Text that is written for 120 columns, on a terminal that has fewer."""

from __future__ import annotations

import re
import textwrap

MORE = 4
"""Further columns before what continues a line of one column, as a command."""
NARROWEST = 24
"""Columns that the last column of a list keeps."""
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")


def fitted(text: str, width: int) -> str:
    """The text in lines of at most `width` columns (0: no limit), but for longer words. Paragraphs are filled anew;
    lines of lists, which have blanks before them or two blanks inside, continue below their last column."""
    if not width:
        return text
    return "\n\n".join(_block(block, width) for block in text.split("\n\n"))


def _block(block: str, width: int) -> str:
    lines = block.split("\n")
    if all(len(line) <= width for line in lines):
        return block
    if not any(line.startswith((" ", "usage:")) for line in lines):
        return _wrapped(" ".join(lines), width, 0)
    return "\n".join(line if len(line) <= width else _wrapped(line, width, _hanging(line, width)) for line in lines)


def _hanging(line: str, width: int) -> int:
    """Where the continuation of a line begins."""
    starts = [match.end() for match in _COLUMNS.finditer(line) if match.end() <= width - NARROWEST]
    own = len(line) - len(line.removeprefix("usage:").lstrip())
    return starts[-1] if starts else own + MORE


def _wrapped(text: str, width: int, indent: int) -> str:
    long = any(len(word) > width - indent for word in text.split())
    text = text.replace("|", "| ") if long else text  # choices may be broken
    lines = textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace("| ", "|") if long else "\n".join(lines)
