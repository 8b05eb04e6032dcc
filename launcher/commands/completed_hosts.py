"""Hosts that completion offers: those of the SSH configuration, and those that runs were submitted to."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator

from launcher.runs import remote_record, run_roots, selection

NEWEST = 50
"""Runs on other hosts whose records are read."""
_LINE = re.compile(r"\s*(host|include)(?:\s*=\s*|\s+)(.*)", re.IGNORECASE)


def names(given: Iterable[str]) -> set[str]:
    """Aliases without wildcards, and destinations as they were typed. `given` are words of the command line, of which
    one may name an SSH configuration."""
    file = next((word.partition("=")[2] for word in given if word.startswith("cluster.ssh_config=")), "~/.ssh/config")
    runs = selection.newest([run_roots.remote()], NEWEST)
    submitted = {pointer.address.destination for run in runs if (pointer := remote_record.read(run.folder))}
    return {*_aliases(os.path.expanduser(file), set()), *submitted}


def _aliases(file: str, read: set[str]) -> Iterator[str]:
    """The aliases of a file and of those that it includes, but for those `read`."""
    if file in read:
        return
    read.add(file)
    lines: list[str] = []
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as stream:
        lines = stream.read().splitlines()
    for line in filter(None, map(_LINE.fullmatch, lines)):
        words = line[2].partition(" #")[0].replace('"', "").split()
        if line[1].lower() == "host":
            yield from (word for word in words if not set(word) & set("*?!"))
        else:
            paths = (os.path.join(os.path.expanduser("~/.ssh"), os.path.expanduser(word)) for word in words)
            for path in (path for pattern in paths for path in sorted(glob.glob(pattern))):
                yield from _aliases(path, read)
