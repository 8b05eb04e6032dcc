"""`tracker=`: what a run logs goes to a tracker while it runs, by a process that nobody waits for."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.runs import run_ids, selection, store
from tests.launcher.run_folders import until

SCRIPT = ("recipe=script", "framework=none", "gpus=0", "telemetry.every=0", "amp=none")
LOGS = """\
from amp_launcher import job
first = len(list(job.checkpoint_dir().glob("*"))) * 2
(job.checkpoint_dir() / str(first)).touch()
for step in (1, 2):
    job.log(first + step, loss=1.0 / (first + step))
"""


@pytest.fixture
def words(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(LOGS)
    (tmp_path / "json.py").write_text("raise SystemExit('not the json of Python')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))  # or it imports TensorFlow
    return (*SCRIPT, f"script={tmp_path}/code/train.py", f"run_root={root}", "tracker=tensorboard")


def sent(folder: Path) -> str:
    return (folder / store.TRACKER_LOG).read_text()


def steps_in(folder: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [event.step for event in EventAccumulator(str(folder)).Reload().Scalars("train/loss")]


def test_a_runs_curves_go_to_its_tracker_and_those_of_its_next_attempt(
    words: Sequence[str], root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words]) == 0
    (name,) = selection.run_names(str(root))
    assert f"to tensorboard as it comes; {root / name / store.TRACKER_LOG}" in capfd.readouterr().err
    until(lambda: "values of" in sent(root / name))
    assert steps_in(tmp_path / "tensorboard" / name) == [1, 2]
    assert main(["resume", name, "script.resume_arguments=[again]", f"run_root={root}"]) == 0
    until(lambda: sent(root / name).count("values of") == 2)
    assert steps_in(tmp_path / "tensorboard" / name) == [1, 2, 3, 4]


def test_a_sweep_has_one_follower(words: Sequence[str], root: Path, tmp_path: Path) -> None:
    assert main([*words, "env.A=choice(a,b)"]) == 0
    first, second = sorted(root / name for name in selection.run_names(str(root)))
    until(lambda: "values of 2 runs sent" in sent(first))
    assert not (second / store.TRACKER_LOG).exists()
    sweep = tmp_path / "tensorboard" / run_ids.sweep_of(first.name)
    assert [steps_in(sweep / cell) for cell in ("000_env.A=a", "001_env.A=b")] == [[1, 2], [1, 2]]


def test_without_the_trackers_package_nothing_is_queued(
    words: Sequence[str], root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    assert main([*words]) == 2
    assert (
        "tracker=tensorboard needs its package here: pip install 'amp-launcher[tensorboard]'" in capsys.readouterr().err
    )
    assert selection.run_names(str(root)) == []


def test_another_tracker_is_refused_with_the_choices(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "tracker=neptune"]) == 2
    assert "tracker=neptune is not one of tensorboard, mlflow, wandb" in capsys.readouterr().err
