"""What starts a function's tasks on a node. That submitit finds them is shown with the launcher's executors
(tests/launcher/executors/test_functions.py)."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from amp_launcher.job import tasks

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(7 * int(os.environ["LAUNCHER_TASK"])))
os.write(1, b"ready\\n")
time.sleep(600)
"""


def started(program: str) -> subprocess.Popen[str]:
    command = [sys.executable, tasks.__file__, "--per-node=2", "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_signal_reaches_all_and_the_exit_code_is_that_of_the_one_that_failed() -> None:
    with started(WAITS) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(signal.SIGUSR2)
        assert process.wait() == 7


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_one_that_fails_ends_the_others(ends: str, code: int) -> None:
    program = f"import os, sys, time\nif os.environ['LAUNCHER_TASK'] == '1': {ends}\ntime.sleep(600)"
    with started(program) as process:
        assert process.wait() == code


def test_numbers_follow_those_of_the_nodes() -> None:
    names = ("LAUNCHER_TASK", "LAUNCHER_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE")
    values = tasks.variables(1, 2, 2, 3)
    assert [values[name] for name in names] == ["5", "6", "5", "1", "2(x3)"]
    assert "SLURM_PROCID" not in tasks.variables(0, 2, None, 1)
