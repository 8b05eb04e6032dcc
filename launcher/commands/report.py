"""`report`: tables and charts from runs: on the terminal, as Markdown, as one HTML file."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.commands.arguments import Parser, all_runs, newest_run_or_sweep, split
from launcher.compare import compared
from launcher.config.paths import expanded
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.report import markdown, page, plain, read, sections
from launcher.report.document import Document
from launcher.runs import run_ids, selection, store
from launcher.runs.schema import PlanRecord
from launcher.ui import tables

NAMED = 4
"""Runs and sweeps that a title names."""


def main(arguments: list[str]) -> int:
    parser = Parser(
        "report",
        "[RUN|SWEEP ...] [--html FILE] [--markdown FILE]",
        "Summarize runs; without any, the newest run or sweep. The HTML file needs no network and opens from "
        "disk. Two runs are compared in detail.",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with charts")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write Markdown; - is the terminal")
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    what = selection.find_all(names, roots) if names else [newest_run_or_sweep(roots)]
    chosen = all_runs(what)
    if not chosen:
        raise UsageError(f"report: no run of {' '.join(names)} is left")
    document = _document(what, chosen)
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


def _document(what: Sequence[selection.Selection], chosen: Sequence[store.Run]) -> Document:
    if len(chosen) == 1 and (document := _comparison(chosen[0])) is not None:
        return document
    names = list(dict.fromkeys(selected.sweep or selected.runs[0].id for selected in what))
    return sections.of_runs(_title(names), read.gather(chosen))


def _title(names: Sequence[str]) -> str:
    """What the report is of: a few by their words, many by their number."""
    if len(names) == 1:
        return names[0]
    *first, last = map(run_ids.words_of, names)
    return f"{', '.join(first)} and {last}" if len(names) <= NAMED else f"{len(names)} runs and sweeps"


def _comparison(run: store.Run) -> Document | None:
    """The report of a comparison, if the run is one."""
    plan = store.read(PlanRecord, run.folder / "plan.json")
    if not (plan.arms and plan.comparison):
        return None
    (seen,) = backends.look([run])
    backends.settle([seen])
    title = f"{plan.name}, {run.id}" if plan.name else run.id
    return compared.document(title, run.folder, seen.state, plan)


def _write(path: Path, content: str, flag: str) -> None:
    path = expanded(str(path))
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        store.write_text(path, content)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; name a file where you may write") from None
    print(f"written: {path}", file=sys.stderr)
