"""HTML as values: text is escaped because only what `tag` made counts as markup."""

from __future__ import annotations

import html

VOID = frozenset({"meta", "line", "rect", "polyline", "path"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """An element. Children that are no `Markup` are escaped, None is left out; `class_` and `data_value` are written
    as HTML spells them."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{join(children)}</{name}>")


def join(children: tuple[str | None, ...] | list[Markup]) -> Markup:
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child is not None)
    )
