"""Text with places in it, filled in one pass: what a value holds is never scanned for places itself."""

from __future__ import annotations

import re

_NAME = "__([A-Z]+(?:_[A-Z]+)*)__"
_LINE = re.compile(rf"^[ \t]*{_NAME}\n|\n[ \t]*{_NAME}\Z", re.MULTILINE)
_PLACE = re.compile(_NAME)


def fill(text: str, **values: str) -> str:
    """`text` with each `__NAME__` replaced by the value called `name`. A place that is a line of its own leaves no line
    where its value is empty.

    `text` is a constant of the code; values may hold what users typed, quoted by whoever made them.
    """
    kept = _LINE.sub(lambda line: line[0] if values[(line[1] or line[2]).lower()] else "", text)
    return _PLACE.sub(lambda place: values[place[1].lower()], kept)
