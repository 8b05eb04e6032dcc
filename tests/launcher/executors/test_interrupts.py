"""Ctrl-C while a run is handed over: either its name is shown, or nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.executors import execute, interrupts, submission
from launcher.runs import selection
from tests.launcher.run_folders import command

BARE = ("recipe=script", "train.bare=true", "train.precision=script", "require_proof=false", "gpus=0")


@pytest.fixture
def words(root: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text("import time; time.sleep(20)\n")
    return [*BARE, f"script={tmp_path}/train.py", f"run_root={root}"]


@pytest.mark.parametrize("moment", ["prepare", "start"])
@pytest.mark.parametrize("detach", [True, False])
def test_ctrl_c_as_a_run_is_started_shows_its_name(
    root: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moment: str,
    detach: bool,
) -> None:
    module: Any = {"prepare": execute, "start": submission}[moment]
    real = getattr(module, moment)

    def pressed(*arguments: Any, **named: Any) -> Any:
        done = real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGINT)
        return done

    monkeypatch.setattr(module, moment, pressed)
    # A second press, which kills the script that the first one can't ask to stop.
    monkeypatch.setattr("launcher.ui.live._answer", lambda _: os.kill(os.getpid(), signal.SIGINT) or "")
    assert main([*words, f"detach={str(detach).lower()}"]) == 130
    (name,) = selection.run_names(str(root))
    assert name in capsys.readouterr().out
    interrupts.raise_noted()  # a later submission of this process is not interrupted


def test_ctrl_c_at_any_moment_leaves_no_unnamed_run(root: Path, words: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    named: set[str] = set()
    for number in range(8):
        started = subprocess.Popen(
            command(*words, "detach=true"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(0.1 + 0.12 * number)
        started.send_signal(signal.SIGINT)
        out, _ = started.communicate()
        named |= set(out.split())
    assert set(selection.run_names(str(root))) == named


def test_ctrl_c_before_anything_is_laid_down_leaves_nothing(
    root: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executors.submission.check_plans", lambda plans: os.kill(os.getpid(), signal.SIGINT))
    assert main(words) == 130
    assert selection.run_names(str(root)) == []
