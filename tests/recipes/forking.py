"""Modules run in processes of their own, forked from one that has imported what takes seconds to import.

TensorFlow and torch start no thread and look at no device until something is computed, so a fork begins as a new
process does. The command itself, and what has to be set before an import, is tested by starting Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Ours with one thread, and without what would make a trainer another job's."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


class Forks:
    """The process from which others are forked. It has imported these modules."""

    def __init__(self, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.recipes.fork_server", *modules],
            env=environment(),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`python -m` with this command: a module and its words."""
        return self.together(command, **environ)[0]

    def together(self, *commands: Sequence[str], **environ: str) -> list[subprocess.CompletedProcess[str]]:
        """The same for several commands at once, once all have ended."""
        requests, answers = self._server.stdin, self._server.stdout
        assert requests is not None and answers is not None
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, str(number)) for number in range(len(commands))]
            jobs = [
                {"command": list(command), "environ": environment(**environ), "output": str(output)}
                for command, output in zip(commands, outputs, strict=True)
            ]
            print(json.dumps(jobs), file=requests, flush=True)
            codes = json.loads(answers.readline())
            return [
                subprocess.CompletedProcess(
                    command, code, output.with_suffix(".out").read_text(), output.with_suffix(".err").read_text()
                )
                for command, code, output in zip(commands, codes, outputs, strict=True)
            ]
