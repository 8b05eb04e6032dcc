"""`report`: tables and charts from runs: on the terminal, as Markdown, as HTML."""

from __future__ import annotations

import errno
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from launcher import safe_files
from launcher.commands.arguments import Parser, all_runs, newest_run_or_sweep
from launcher.compare import documents
from launcher.config.paths import expanded
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.report import markdown, overview, page, plain
from launcher.report.document import Document
from launcher.runs import selection, store
from launcher.runs.states import Seen
from launcher.ui import tables

OF = ("plan.json", "result.json", "status.json", "metrics.jsonl", "provenance.json")
"""Files of a run of which its page is made."""


def main(arguments: list[str]) -> int:
    parser = Parser(
        "report",
        "[RUN|SWEEP ... | --all] [--html FILE] [--markdown FILE]",
        "Summarize runs; without any, the newest run or sweep. The HTML file needs no network and opens from "
        "disk. Two runs are compared in detail.",
    )
    parser.add_argument(
        "--all", action="store_true", help="one table of every run; --html also writes a page of each beside it"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with charts")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write Markdown; - is the terminal")
    options, names, roots = parser.read(arguments)
    if options.all:
        if names:
            raise UsageError(f"report: --all is every run; leave out {' '.join(names)}, or --all")
        return _give(_overview(roots, options.html), options)
    what = selection.find_all(names, roots) if names else [newest_run_or_sweep(roots)]
    return _give(documents.of(what, all_runs(what)), options)


def _give(document: Document, options: Namespace) -> int:
    # Files first: a reader such as `head` may close the terminal's end early.
    if options.html:
        _write(options.html, page.render(document), "--html")
    if str(options.markdown) == "-":
        print(markdown.render(document), end="")
        return 0
    if options.markdown:
        _write(options.markdown, markdown.render(document), "--markdown")
    print("\n".join(plain.lines(document, tables.width_of(sys.stdout))))
    return 0


def _overview(roots: Sequence[str], html: Path | None) -> Document:
    """The table of all runs, the newest first; with a page of each in a folder beside the file, where one is wanted."""
    seen = backends.states_of(selection.newest(roots))
    backends.settle(seen)
    pages = _pages(expanded(str(html)), seen) if html and seen and not expanded(str(html)).is_dir() else {}
    return overview.document(f"Runs of {', '.join(map(tables.clean, roots))}", seen, time.time(), pages)


def _pages(html: Path, seen: Sequence[Seen]) -> dict[str, str]:
    """Write the page of each run that has changed since; the addresses by id."""
    folder = html.with_name(f"{html.stem}-runs")
    written_by = max(path.stat().st_mtime for path in Path(page.__file__).parent.iterdir())
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--html {html}: {folder}: {error.strerror}; name a file where you may write") from None
    for number, one in enumerate(seen, start=1):
        if sys.stderr.isatty():
            print(f"\rpages: {number} of {len(seen)}", end="" if number < len(seen) else "\n", file=sys.stderr)
        path = folder / f"{one.run.id}.html"
        if not one.state.finished or safe_files.changed(path) < max(
            written_by, *(safe_files.changed(one.run.folder / name) for name in OF)
        ):
            _write(path, page.render(documents.of_one(one)), "--html", told=False)
    return {one.run.id: quote(f"{folder.name}/{one.run.id}.html") for one in seen}


def _write(path: Path, content: str, flag: str, told: bool = True) -> None:
    path = expanded(str(path))
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        store.write_text(path, content)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; name a file where you may write") from None
    if told:
        print(f"written: {path}", file=sys.stderr)
