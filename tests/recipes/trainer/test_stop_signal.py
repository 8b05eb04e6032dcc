"""A script is ended by the signal whatever becomes of its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import sys, threading, time
from pathlib import Path
from recipes.trainer.stop_signal import StopSignal

request = StopSignal(Path(sys.argv[1]), {"script": {"stop_signal": "TERM"}, "cluster": {"stop_before": 30}}, 0)
request.conclude = lambda code: %s
with request:
    time.sleep(600)
"""


@pytest.mark.parametrize("concludes", ["time.sleep(600)", "sys.exit('a full disk')"], ids=["hangs", "fails"])
def test_a_script_is_ended_where_its_result_cannot_be_written(tmp_path: Path, concludes: str) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    (tmp_path / "STOP").touch()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LAUNCHER_ATTEMPT": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT % concludes, tmp_path], env=environ, timeout=300)
    assert done.returncode == -signal.SIGTERM
    assert (tmp_path / "attempts/1/stopped.json").exists()
