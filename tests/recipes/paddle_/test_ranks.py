"""Two processes of `paddle.distributed.launch` on a CPU train as one does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.recipes.paddle_.test_simplenet import losses
from tests.recipes.torch_.trainers import REPOSITORY, environment

LAUNCH = ["-m", "paddle.distributed.launch", "--nproc_per_node=2", "--backend=gloo"]
RECIPES = {
    "simplenet": ["train.width=32", "batch=32", "train.lr=0.01"],
    "mnist": ["batch=64", "train.dropout_conv=0", "train.dropout_dense=0"],
}


def run(folder, recipe, processes, *words):
    folder.mkdir(exist_ok=True)
    launch = [*LAUNCH, f"--log_dir={folder}/ranks", "recipes/paddle_/rank.py"] if processes == 2 else ["-m"]
    argv = [*launch, f"recipes.paddle_.{recipe}", "amp=o0", "device=cpu", "steps=6", *RECIPES[recipe], *words]
    done = subprocess.run(
        [sys.executable, *argv, f"run={folder}"],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = folder / "result.json"
    return done, json.loads(found.read_text()) if found.exists() else {}


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_train_as_one_does_with_accumulation_and_go_on(tmp_path, recipe):
    """Each on its own samples, with gradients reduced once a step, and a checkpoint of the first rank's."""
    one, _ = run(tmp_path / "one", recipe, 1, "accumulate=2")
    first, _ = run(tmp_path / "two", recipe, 2, "accumulate=2", "checkpoint.stop_every=4")
    second, found = run(tmp_path / "two", recipe, 2, "accumulate=2")
    assert (one.returncode, second.returncode) == (0, 0), second.stdout[-2000:] + second.stderr[-2000:]
    assert first.returncode != 0
    assert (found["status"], found["world_size"], found["resumed_from"]) == ("done", 2, 4)
    assert found["observed"]["verdict"] == "proved"
    assert "on 2 ranks" in found["observed"]["why"]
    ours, alone = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert list(ours.values()) == pytest.approx(list(alone.values()), rel=1e-5)
