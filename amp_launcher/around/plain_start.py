"""What the way from the shell to a script changed of the process, changed back: variables, `sys.path`, umask.

The launcher starts the wrapper by bash, from another folder, and finds its own package by PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

OF_SHELL = "LAUNCHER_SHELL_"
"""Prefix of variables with what the user's shell had in those that the way to the script needs or changes."""
REPLACED = ("_", "PWD", "OLDPWD", "SHLVL", "PYTHONPATH", "PYTHONUNBUFFERED")
"""Those that are set on the way in any case."""
UMASK = "LAUNCHER_UMASK"
"""The shell's umask, in octal; set where a script inherits the environment of a shell."""


def restore(code: str, workdir: Path) -> None:
    """Give the script that starts in `workdir` the variables, the search path and the umask of plain Python. `code` is
    the folder of the run's own code, which plain Python doesn't search; empty where nobody put it there."""
    if code:
        first = [] if getattr(sys.flags, "safe_path", False) else sys.path[:1]
        sys.path[:] = [*first, *(entry for entry in sys.path[len(first) :] if not _is(entry, code))]
    if (umask := os.environ.pop(UMASK, None)) is not None:
        os.umask(int(umask, 8))
        restore_variables(os.environ, code, workdir)
    elif code and "PYTHONPATH" in os.environ:
        _put(os.environ, "PYTHONPATH", _without(os.environ["PYTHONPATH"], code))


def restore_variables(environ: MutableMapping[str, str], code: str, workdir: Path) -> None:
    """The variables of the shell, as they are for a program that is started in `workdir`."""
    kept = [name for name in environ if name.startswith(OF_SHELL)]
    shell: dict[str, str | None] = dict.fromkeys(REPLACED)
    shell |= {name.removeprefix(OF_SHELL): environ.pop(name) for name in kept}
    typed_in, entries = shell["PWD"] or "", _without(environ.get("PYTHONPATH", ""), code)
    is_there = os.path.realpath(typed_in) == os.path.realpath(workdir)
    if typed_in and not is_there:  # as behind a `cd`
        shell |= {"PWD": str(workdir), "OLDPWD": typed_in}
    # Relative entries name folders where they were typed; and `cluster.setup` may have added others.
    if not is_there or entries != absolute(shell["PYTHONPATH"], typed_in):
        shell["PYTHONPATH"] = entries
    for name, value in shell.items():
        _put(environ, name, value)


def absolute(entries: str | None, folder: str) -> str | None:
    """The entries of PYTHONPATH as absolute paths; None for none."""
    return os.pathsep.join(os.path.join(folder, entry) for entry in entries.split(os.pathsep)) if entries else None


def _without(entries: str, code: str) -> str | None:
    """The entries of PYTHONPATH without that one; None where no other is left."""
    return os.pathsep.join(entry for entry in entries.split(os.pathsep) if not _is(entry, code)) or None


def _is(entry: str, code: str) -> bool:
    return bool(entry) and os.path.realpath(entry) == os.path.realpath(code)


def _put(environ: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value
