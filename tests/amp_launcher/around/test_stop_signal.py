"""A script is ended by the signal whatever becomes of its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from amp_launcher.around import stop_signal
from amp_launcher.around.stop_signal import StopSignal
from amp_launcher.job import stop as script_stop
from amp_launcher.run_folder import OVERDUE, RunFolder

SCRIPT = """\
import signal, sys, threading, time
from pathlib import Path
from amp_launcher.around.stop_signal import StopSignal

concluding = threading.Event()
before = 1000
%s
request = StopSignal(Path(sys.argv[1]), {"script": {"stop_signal": "TERM"}, "cluster": {"stop_before": before}}, 0)
request.conclude = lambda code: %s
with request:
    %s
"""
HANDLES = "concluding.wait()\n    signal.signal(signal.SIGTERM, lambda *_: None)\n    time.sleep(20)"
"""As a script that imports its libraries first."""
DEAF = "before, began = 4, time.monotonic()\nsignal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))"


@pytest.mark.parametrize(
    ("begin", "concludes", "script", "end"),
    [
        ("", "time.sleep(600)", "time.sleep(600)", signal.SIGTERM),
        ("", "sys.exit('a full disk')", "time.sleep(600)", signal.SIGTERM),
        ("", "(concluding.set(), time.sleep(1))", HANDLES, signal.SIGKILL),
        (DEAF, "print(code, time.monotonic() - began >= 2, flush=True)", "time.sleep(600)", signal.SIGKILL),
    ],
    ids=["its result hangs", "its result fails", "it gets a handler while its result is written", "it goes on"],
)
def test_a_script_is_ended_whatever_becomes_of_its_result(
    tmp_path: Path, begin: str, concludes: str, script: str, end: int
) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    (tmp_path / "STOP").touch()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LAUNCHER_ATTEMPT": "1"}
    command = [sys.executable, "-c", SCRIPT % (begin, concludes, script), tmp_path]
    ended = subprocess.run(command, env=environ, timeout=300, capture_output=True, text=True)
    assert ended.returncode == -end
    if begin:
        assert ended.stdout == "asked\n137 True\n", "once, and a result is written before the kill"
        assert ended.stderr == "script: asked to stop: SIGTERM was raised in it\n"
        assert (tmp_path / "attempts/1" / OVERDUE).read_text() == "2\n"
    else:
        assert "SIGTERM ends it, as it has no handler" in ended.stderr
        assert (tmp_path / "attempts/1/stopped.json").exists()


@pytest.mark.parametrize(
    ("code", "trace", "asked", "stop", "stopped"),
    [
        (0, "", True, True, True),
        (0, "Traceback", True, True, False),
        (143, "", False, True, True),  # by torchrun, as another rank saw the request first
        (0, "", False, True, False),
        (143, "", False, False, False),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_script_has_stopped_if_it_was_asked_and_raised_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    trace: str,
    asked: bool,
    stop: bool,
    stopped: bool,
    rank: int,
) -> None:
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    if stop:
        (tmp_path / "STOP").touch()
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    monkeypatch.setattr(script_stop.requests, "answered_true", asked)
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    with StopSignal(tmp_path, {}, rank) as request:
        assert "stop-signal" not in [thread.name for thread in threading.enumerate()], "the plan names no signal"
    assert request.stopped(code, trace) is stopped
    assert (folder / "stopped.json").exists() is (stopped and rank == 0)
    assert not StopSignal(None, {}, rank).stopped(code, trace)


@pytest.mark.parametrize(("before", "asked", "killed"), [(3, 1.0, 1.5), (4, 1.0, 2.0), (10, 4.0, 7.0)])
def test_a_script_that_asks_no_more_gets_the_signal_after_half_of_its_time_and_is_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, asked: float, killed: float
) -> None:
    now, signals = 5.25, []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        (tmp_path / "STOP").touch()
        return False

    def kill(process: int, number: int) -> None:
        signals.append((number, now - 6.0))  # it is seen at a whole second
        if number == signal.SIGKILL:
            raise SystemExit

    (tmp_path / "attempts/1").mkdir(parents=True)
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    monkeypatch.setattr(script_stop.requests, "called", True)
    monkeypatch.setattr(stop_signal, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now, sleep=time.sleep))
    monkeypatch.setattr(stop_signal, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=kill))
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    request = StopSignal(tmp_path, {"script": {"stop_signal": "TERM"}, "cluster": {"stop_before": before}}, 0)
    monkeypatch.setattr(request, "_over", SimpleNamespace(wait=wait, is_set=bool))
    with pytest.raises(SystemExit):
        request._watch(RunFolder(path=tmp_path, attempt=1))
    assert signals == [(signal.SIGTERM, asked), (signal.SIGKILL, killed)]
