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
STARTING = """\
import signal, sys, threading, time
from pathlib import Path
from recipes.trainer.stop_signal import StopSignal

concluding = threading.Event()
request = StopSignal(Path(sys.argv[1]), {"script": {"stop_signal": "TERM"}, "cluster": {"stop_before": 30}}, 0)
request.conclude = lambda code: (concluding.set(), time.sleep(1))
with request:
    concluding.wait()  # as a script that imports its libraries
    signal.signal(signal.SIGTERM, lambda *_: None)
    time.sleep(20)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LAUNCHER_ATTEMPT": "1"}


@pytest.mark.parametrize("concludes", ["time.sleep(600)", "sys.exit('a full disk')"], ids=["hangs", "fails"])
def test_a_script_is_ended_where_its_result_cannot_be_written(tmp_path: Path, concludes: str) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    (tmp_path / "STOP").touch()
    done = subprocess.run([sys.executable, "-c", SCRIPT % concludes, tmp_path], env=environment(), timeout=300)
    assert done.returncode == -signal.SIGTERM
    assert (tmp_path / "attempts/1/stopped.json").exists()


def test_a_script_that_gets_its_handler_while_its_result_is_written_is_ended_too(tmp_path: Path) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    (tmp_path / "STOP").touch()
    done = subprocess.run([sys.executable, "-c", STARTING, tmp_path], env=environment(), timeout=300)
    assert done.returncode == -signal.SIGKILL
