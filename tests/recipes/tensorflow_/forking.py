"""Modules run in processes of their own, forked from one that has imported TensorFlow: importing it costs seconds.

TensorFlow starts no thread and looks at no device until something is computed, so a fork begins as a new process does.
The command itself, and what has to be set before the import, is tested by starting Python.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.recipes.torch_.trainers import REPOSITORY, environment

LIMIT = 300.0
"""Seconds after which a process is killed."""


class Forks:
    """The process from which others are forked, started when the first is needed."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`python -m` with this command: a module and its words."""
        return self.together(command, **environ)[0]

    def together(self, *commands: Sequence[str], **environ: str) -> list[subprocess.CompletedProcess[str]]:
        """The same for several commands at once, once all have ended."""
        server = self._started()
        assert server.stdin is not None and server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, str(number)) for number in range(len(commands))]
            jobs = [
                {"command": list(command), "environ": environment(**environ), "output": str(output)}
                for command, output in zip(commands, outputs, strict=True)
            ]
            print(json.dumps(jobs), file=server.stdin, flush=True)
            codes = json.loads(server.stdout.readline())
            return [
                subprocess.CompletedProcess(
                    command, code, output.with_suffix(".out").read_text(), output.with_suffix(".err").read_text()
                )
                for command, code, output in zip(commands, codes, outputs, strict=True)
            ]

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            command = [sys.executable, "-m", __name__]
            self._server = subprocess.Popen(
                command, env=environment(), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._server


def serve() -> None:
    """Run the jobs of each line of the input at once, and print their exit codes. Ends with the input."""
    import recipes.tensorflow_
    from recipes.tensorflow_ import gan, loop, mnist

    assert recipes.tensorflow_ and gan and loop and mnist
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
    except BaseException:
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
    serve()
