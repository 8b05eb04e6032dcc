"""The command line of the modules that start one process, or one node, of a job."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence


def start(module: str, words: Sequence[str], begin: Callable[[tuple[str, ...], int], Sequence[str]]) -> None:
    """Run the module that the command line names in this process.

    `module` is the one that was started. `begin` gets all addresses, HOST:PORT each, and this one's number, and returns
    the words to put in front of the other module's. Exits with 2 for a command line without workers, number or module.
    """
    usage = f"usage: python -m {module} --workers=HOST:PORT,... --number=N -m MODULE [WORD ...]"
    try:
        workers, number, flag, named, *rest = words
        if not workers.startswith("--workers=") or not number.startswith("--number=") or flag != "-m":
            raise ValueError
        addresses, index = tuple(workers.partition("=")[2].split(",")), int(number.partition("=")[2])
    except ValueError:
        print(usage, file=sys.stderr)
        raise SystemExit(2) from None
    if not 0 <= index < len(addresses):
        print(f"--number={index} of {len(addresses)} workers", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [named, *begin(addresses, index), *rest]
    runpy.run_module(named, run_name="__main__", alter_sys=True)
