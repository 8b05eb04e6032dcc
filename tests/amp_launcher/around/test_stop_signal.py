"""A script is ended by the signal whatever becomes of its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import signal, sys, threading, time
from pathlib import Path
from amp_launcher.around.stop_signal import StopSignal

concluding = threading.Event()
request = StopSignal(Path(sys.argv[1]), {"script": {"stop_signal": "TERM"}, "cluster": {"stop_before": 30}}, 0)
request.conclude = lambda code: %s
with request:
    %s
"""
HANDLES = "concluding.wait()\n    signal.signal(signal.SIGTERM, lambda *_: None)\n    time.sleep(20)"
"""As a script that imports its libraries first."""


@pytest.mark.parametrize(
    ("concludes", "script", "end"),
    [
        ("time.sleep(600)", "time.sleep(600)", signal.SIGTERM),
        ("sys.exit('a full disk')", "time.sleep(600)", signal.SIGTERM),
        ("(concluding.set(), time.sleep(1))", HANDLES, signal.SIGKILL),
    ],
    ids=["its result hangs", "its result fails", "it gets a handler while its result is written"],
)
def test_a_script_is_ended_whatever_becomes_of_its_result(
    tmp_path: Path, concludes: str, script: str, end: int
) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    (tmp_path / "STOP").touch()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LAUNCHER_ATTEMPT": "1"}
    command = [sys.executable, "-c", SCRIPT % (concludes, script), tmp_path]
    assert subprocess.run(command, env=environ, timeout=300).returncode == -end
    assert (tmp_path / "attempts/1/stopped.json").exists()
