"""`cmd`: any program as a job, such as a shell script that prepares data."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.commands import plan, run
from launcher.config import script_word
from launcher.errors import UsageError

HELP = """\
usage: python -m launcher cmd [key=value ...] [--plan] -- FILE [ARGUMENTS]

Runs FILE by itself, as a shell would: it has to be executable and begin with `#!`. The code that it belongs to goes
along as a script's does, and resources, containers, logs, `after=` and `resume` are as for scripts. Nothing is observed
and no mode is applied (amp=none). For a script in Python: `run FILE.py amp=none`.

keys are those of `run`; `python -m launcher run --help` lists them.
"""

KEYS = ("recipe=script", "framework=none", "amp=none", "train.bare=true", "train.command=true")
"""What makes a program of a script."""


def main(arguments: Sequence[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    ours = arguments[:at]
    start = plan.main if "--plan" in ours else run.main
    return start(words([*(word for word in ours if word != "--plan"), *arguments[at:]]))


def words(arguments: Sequence[str]) -> list[str]:
    """The words of `run` that these of `cmd` mean. Raises `UsageError`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    ours, command = arguments[:at], arguments[at + 1 :]
    stray = next((word for word in ours if script_word.is_script(word)), None)
    if stray or not command:
        given = f"{stray}: the command goes" if stray else "cmd needs a command, which goes"
        raise UsageError(f"{given} after --: cmd -- {stray or './prepare.sh'} ...")
    file, *rest = command
    if not os.path.isfile(os.path.expanduser(file)):
        raise UsageError(
            f"cmd -- {file}: there is no such file here; a program such as make goes into a file that calls it, which "
            "is sent along: cmd -- ./prepare.sh"
        )
    return [*KEYS, f"script={file}", *ours, "--", *rest]
