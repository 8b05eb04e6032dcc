"""Two processes of `paddle.distributed.launch` on a CPU train as one does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recipes.paddle_ import mnist
from recipes.paddle_.loop import main
from tests.recipes.forking import REPOSITORY, environment
from tests.recipes.paddle_.test_simplenet import losses
from tests.recipes.torch_.trainers import result

LAUNCH = ["-m", "paddle.distributed.launch", "--nproc_per_node=2", "--backend=gloo"]
WORDS = ["amp=o0", "device=cpu", "steps=6", "batch=64", "train.dropout_conv=0", "train.dropout_dense=0", "accumulate=2"]


def together(folder, *words):
    """Two ranks."""
    folder.mkdir(exist_ok=True)
    argv = [*LAUNCH, f"--log_dir={folder}/ranks", "recipes/paddle_/rank.py", "recipes.paddle_.mnist", *WORDS, *words]
    return subprocess.run(
        [sys.executable, *argv, f"run={folder}"],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_two_ranks_train_as_one_does_with_accumulation_and_go_on(tmp_path):
    """Each on its own samples, with gradients reduced once a step; here from a checkpoint of one rank."""
    assert main("mnist", mnist.train, [*WORDS, f"run={tmp_path / 'one'}"]) == 0
    assert main("mnist", mnist.train, [*WORDS, "checkpoint.stop_every=2", f"run={tmp_path / 'two'}"]) == 85
    ended = together(tmp_path / "two")
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    record = result(tmp_path / "two")
    assert (record["status"], record["world_size"], record["resumed_from"]) == ("done", 2, 2)
    assert record["observed"]["verdict"] == "proved"
    assert "on 2 ranks" in record["observed"]["why"]
    ours, alone = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert list(ours.values()) == pytest.approx(list(alone.values()), rel=1e-5)
    assert record["eval"]["accuracy"] == pytest.approx(result(tmp_path / "one")["eval"]["accuracy"])
