"""The process of `tests.recipes.forking` from which others are forked. It ends with its input."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence

LIMIT = 500.0
"""Seconds after which a process is killed."""


def serve(modules: Sequence[str]) -> None:
    """Import the modules. Run the jobs of each line of the input at once, and print their exit codes."""
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        pids = [_forked(**job) for job in json.loads(line)]
        until = time.monotonic() + LIMIT
        print(json.dumps([_exit_code(pid, until) for pid in pids]), flush=True)


def _forked(command: Sequence[str], environ: Mapping[str, str], output: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{output}.{name}", os.O_CREAT | os.O_WRONLY, 0o600), number)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # as Python itself ends a program: with its traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(pid: int, until: float) -> int:
    """As `subprocess` has it, negative for a signal."""
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    serve(sys.argv[1:])
