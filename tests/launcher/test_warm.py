"""The Python of `tests.launcher.warm` ends as the program does that another process runs for it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.amp_launcher.forking import environment
from tests.launcher import warm
from tests.launcher.run_folders import until

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
print(os.getpid(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 85), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_signals_reach_the_program_and_its_end_is_seen(tmp_path, number, code):
    (tmp_path / "amp_launcher").mkdir()
    (tmp_path / "amp_launcher" / "__init__.py").touch()
    (tmp_path / "amp_launcher" / "torch.py").write_text(WAITS)
    argv = [warm.python(), "-m", "amp_launcher.torch"]
    more = environment(PYTHONPATH=str(tmp_path))
    with subprocess.Popen(argv, env=more, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        os.kill(process.pid, number)
        assert process.wait() == code
    until(lambda: not Path(f"/proc/{program}").exists())
