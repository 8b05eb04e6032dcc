"""`report`: tables and charts from runs: on the terminal, as Markdown, as one HTML file."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from launcher.commands.arguments import Parser, all_runs, newest_run_or_sweep, refuse_none
from launcher.compare import documents
from launcher.config.paths import expanded
from launcher.errors import UsageError
from launcher.report import markdown, page, plain
from launcher.runs import selection, store
from launcher.ui import tables


def main(arguments: list[str]) -> int:
    parser = Parser(
        "report",
        "[RUN|SWEEP ...] [--html FILE] [--markdown FILE]",
        "Summarize runs; without any, the newest run or sweep. The HTML file needs no network and opens from "
        "disk. Two runs are compared in detail.",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with charts")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write Markdown; - is the terminal")
    options, names, roots = parser.read(arguments)
    what = selection.find_all(names, roots) if names else [newest_run_or_sweep(roots)]
    chosen = all_runs(what)
    refuse_none("report", names, chosen)
    document = documents.of(what, chosen)
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


def _write(path: Path, content: str, flag: str) -> None:
    path = expanded(str(path))
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        store.write_text(path, content)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; name a file where you may write") from None
    print(f"written: {path}", file=sys.stderr)
