"""A report that a notebook shows in its place."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.config.paths import expanded
from launcher.errors import of_program
from launcher.report import page, plain
from launcher.report.document import Document
from launcher.report.markup import tag
from launcher.runs import store
from launcher.ui import tables


class Page:
    """A report: its page in a notebook, its text elsewhere."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def save(self, path: str | Path) -> None:
        """Write the page, which needs no network and opens from disk. Raises `LauncherError`."""
        with of_program():
            store.write_text(expanded(str(path)), page.render(self._document))

    def __repr__(self) -> str:
        return "\n".join(plain.lines(self._document, tables.width_of(sys.stdout)))

    def _repr_html_(self) -> str:
        # In a frame of its own, so that neither its style nor its script reaches the notebook.
        content = page.render(self._document)
        style = "width: 100%; height: 40em; border: 1px solid #8884"
        return tag("iframe", srcdoc=content, sandbox="allow-scripts", style=style)
