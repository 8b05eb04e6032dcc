"""What `python -m launcher` without a word shows: what runs, what ran, and the commands to go on with."""

from __future__ import annotations

import sys

from launcher.commands import ls
from launcher.executors import backends
from launcher.runs import run_roots, selection
from launcher.ui import tables

NEWEST = 5
UNFINISHED = 10
_COMMANDS = """\
  python -m launcher amp=o1              train here, now: mnist, in a mode
  python -m launcher train.py amp=o1     your own script in that mode, proved
  python -m launcher compare amp=o0,o1   what a mode gains, and costs
  python -m launcher --help              all verbs, ls and logs among them
"""


def main() -> int:
    roots = run_roots.named(None)
    chosen = {*selection.newest(roots, NEWEST), *selection.unfinished(roots)[-UNFINISHED:]}
    seen = backends.look(sorted(chosen, key=lambda run: run.id, reverse=True))
    backends.settle(seen)
    print("\n".join(ls.listing(seen, 0, roots, tables.width_of(sys.stdout))), end="\n\n")
    print(_COMMANDS, end="")
    return 0
