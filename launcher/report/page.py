"""A document as one HTML file: no network, light and dark, wide and narrow, tables that sort."""

from __future__ import annotations

import base64
import hashlib
import itertools
from pathlib import Path

from launcher.report import charts
from launcher.report.document import Bars, Cell, Code, Curves, Document, Part, Prose, Section, Table
from launcher.report.markup import Markup, join, tag

LONG = 16
"""Letters from which on a heading or a cell may be broken anywhere."""
TALL = 30
"""Rows of a table that has no scrolling of its own."""
_HERE = Path(__file__).parent


def render(document: Document) -> str:
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is fetched and no other script runs, whatever text the runs contain.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", document.title),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag(
            "main",
            tag("h1", document.title),
            join([tag("p", sentence, class_="lead") for sentence in document.lead]),
            join([_section(section) for section in document.sections]),
        ),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    """Parts under each other; charts by step side by side where there is room, those by time on one axis."""
    drawn = []
    for kind, parts in itertools.groupby(section.parts, _place):
        content = join([_part(part) for part in parts])
        drawn.append(tag("div", content, class_=kind) if kind else content)
    return tag("section", tag("h2", section.title), join(drawn))


def _place(part: Part) -> str:
    if isinstance(part, Curves):
        return "charts" if part.x == "step" else "charts stacked"
    return "charts" if isinstance(part, Bars) else ""


def _part(part: Part) -> Markup:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Bars):
        return charts.bars(part)
    if isinstance(part, Curves):
        return charts.curves(part)
    if isinstance(part, Prose):
        return tag("p", part.text)
    assert isinstance(part, Code)
    return tag("pre", tag("code", part.text))


def _table(table: Table) -> Markup:
    header = [
        tag(
            "th",
            tag("button", name, type="button", class_="long" if len(name) > LONG else None),
            scope="col",
            class_="number" if index in table.numbers else None,
        )
        for index, name in enumerate(table.header)
    ]
    rows = [
        tag("tr", join([_cell(cell, name, index in table.numbers) for index, (name, cell) in enumerate(named)]))
        for named in (list(zip(table.header, row, strict=True)) for row in table.rows)
    ]
    markup = tag("table", tag("thead", tag("tr", join(header))), tag("tbody", join(rows)))
    kind = "wide tall" if len(table.rows) > TALL else "wide"
    return tag("div", markup, class_=kind, tabindex=0, role="region", aria_label=f"table by {table.header[0]}")


def _cell(cell: Cell, name: str, number: bool) -> Markup:
    value = None if cell.value is None else (repr(float(cell.value)) if number else str(cell.value))
    # Names such as half_model_fp32_masters are broken at an underscore first.
    parts = [cell.text] if " " in cell.text else cell.text.split("_")
    text = Markup("_<wbr>").join(join((part,)) for part in parts)
    content = tag("a", Markup(text), href=cell.link) if cell.link else Markup(text)
    kind = "number" if number else "short" if len(cell.text) <= LONG else None
    return tag("td", content, class_=kind, data_value=value, data_name=name)
