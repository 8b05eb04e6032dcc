"""What a script asks of its job, without torch: `tests/launcher/script/test_stopping_scripts.py` has ranks."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_launcher import job
from amp_launcher.job import stop as script_stop
from amp_launcher.world import preemption
from amp_launcher.world.preemption import SECONDS


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(preemption, "_received", threading.Event())
    monkeypatch.setattr(script_stop, "requests", script_stop.StopRequests())
    monkeypatch.setattr(script_stop, "_torch_world", lambda: None)
    for name in ("LAUNCHER_SPEC", "LAUNCHER_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield
    signal.signal(signal.SIGTERM, before)


def test_without_a_launcher_nothing_stops_and_checkpoints_are_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not job.should_stop()
    assert job.checkpoint_dir() == tmp_path / "checkpoints"
    assert stat.S_IMODE((tmp_path / "checkpoints").stat().st_mode) == 0o700


@pytest.mark.parametrize("plan", ["plan.json", "attempts/2/plan.json"])
def test_a_request_is_seen_within_a_second_and_then_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    clock = [100.0]
    monkeypatch.setattr(script_stop.time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("LAUNCHER_SPEC", str(tmp_path / plan))
    assert not script_stop.requests.called
    assert not job.should_stop()
    assert script_stop.requests.called
    (tmp_path / "STOP").touch()
    clock[0] += SECONDS / 2
    assert not job.should_stop()
    clock[0] += SECONDS / 2
    assert job.should_stop()
    (tmp_path / "STOP").unlink()
    assert job.should_stop()


def test_term_is_a_request_from_the_first_call_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not job.should_stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "without a launcher TERM ends the script, as by itself"
    monkeypatch.setenv("LAUNCHER_SPEC", str(tmp_path / "plan.json"))
    assert not job.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.should_stop()


def test_a_handler_of_the_script_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_SPEC", str(tmp_path / "plan.json"))
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    assert not job.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (received, job.should_stop()) == ([signal.SIGTERM], False)


def test_the_launcher_names_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CHECKPOINT_DIR", str(tmp_path / "run" / "checkpoints"))
    assert job.checkpoint_dir() == tmp_path / "run" / "checkpoints"
    assert job.checkpoint_dir().is_dir()
