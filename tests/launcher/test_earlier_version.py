"""A run that an earlier version stopped halfway, before the library had a name of its own.

`fixtures/run_of_0.1.0` is `recipe=simplenet amp=o2 train.width=16 batch=8 steps=20 checkpoint.stop_every=10
verify.record=true` on two cores, with names for the folders and the host that it had.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .run_folders import launcher, lines

RUN = "20261124-000905-serene-comet"
FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_of_0.1.0"
LOSS = 0.4557896852493286
"""At step 20 of that version."""


@pytest.fixture
def run(root):
    """Its folder, at home here."""
    folder = root / RUN
    shutil.copytree(FIXTURE, folder)
    here = {"@ROOT@": str(root), "@PYTHON@": sys.executable, "@CODE@": os.getcwd(), "@HOST@": platform.node()}
    for path in folder.rglob("*.json"):
        text = path.read_text()
        for name, value in here.items():
            text = text.replace(name, value)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["ls", "--all"], ["serene-comet", "stopped", "simplenet-o2"]),
        (["report", RUN], ["half_model_fp32_masters", "proved"]),
        (["export", RUN, "weights.safetensors"], ["weights.safetensors"]),
    ],
)
def test_its_folder_is_read_as_ones_of_today(run, tmp_path, monkeypatch, words, shown):
    monkeypatch.chdir(tmp_path)
    done = launcher(*words, f"run_root={run.parent}", state_home=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    for word in shown:
        assert word in done.stdout + done.stderr


def test_its_code_is_what_resume_would_run_and_is_named_where_it_is_gone(run, tmp_path):
    done = launcher("resume", RUN, f"run_root={run.parent}", state_home=tmp_path / "state")
    assert done.returncode == 2
    assert json.loads((run / "plan.json").read_text())["code"][:8] in done.stderr
    assert json.loads((run / "status.json").read_text())["state"] == "stopped"


def test_its_checkpoint_is_trained_on_as_that_version_did(run):
    words = ["recipe=simplenet", "amp=o2", "train.width=16", "batch=8", "steps=20", "data=synthetic", "device=cpu"]
    trainer = [sys.executable, "-m", "recipes.simplenet.train_torch", *words, f"run={run}"]
    done = subprocess.run(trainer, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = [row for row in lines(run / "metrics.jsonl") if "event" not in row]
    assert [row["step"] for row in steps] == list(range(1, 21))
    assert steps[-1]["loss"] == pytest.approx(LOSS, rel=1e-4)
    assert json.loads((run / "result.json").read_text())["observed"]["verdict"] == "proved"
