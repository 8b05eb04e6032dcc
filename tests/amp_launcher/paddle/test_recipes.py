"""Paddle's ways of training: a loop, `paddle.Model`, a static graph; two processes of `paddle.distributed.launch`.

`tests/recipes/contract` has what every framework does.
"""

from __future__ import annotations

import subprocess
import sys

import paddle
import pytest

from amp_launcher.paddle.precision import high_level_api
from amp_launcher.recipes.mnist import train_paddle as mnist
from tests.amp_launcher.contract.runs import STOPPED, losses, run, train
from tests.amp_launcher.forking import REPOSITORY, environment
from tests.amp_launcher.paddle.forced import forced_mechanism
from tests.amp_launcher.torch.trainers import result
from tests.recipes.data.idx_files import write_mnist

LAUNCH = ["-m", "paddle.distributed.launch", "--nproc_per_node=2", "--backend=gloo"]


def test_mnist_learns_by_paddles_model(tmp_path):
    """That the loop has torch's losses is in the contract."""
    folder = train("paddle", "mnist", tmp_path, "amp=o0", "device=auto", "batch=32", "steps=24", "train.api=model")
    assert result(folder)["observed"]["param_dtypes"] == {"float32": 1_199_882}
    assert result(folder)["eval"]["accuracy"] > 0.5


def test_paddles_other_ways_of_training_do_the_same(tmp_path):
    """From the same seed: the same initial weights, and losses within float32's rounding."""
    words = ("amp=o0", "train.width=32", "batch=16", "train.lr=0.01")
    expected = losses(train("paddle", "simplenet", tmp_path / "loop", *words))
    for api in ("model", "static"):
        other = train("paddle", "simplenet", tmp_path / api, *words, f"train.api={api}")
        assert losses(other) == pytest.approx(expected, rel=2e-6)
        observed = result(other)["observed"]
        assert (observed["verdict"], observed["half_flop_share"]) == ("proved", 0.0)
        assert observed["param_dtypes"] == {"float32": 9 * (32 * 32 + 32)}
        assert paddle.in_dynamic_mode()


def test_paddles_model_is_prepared_with_what_amp_says(monkeypatch):
    """As the guide's example of its high-level interface: level, lists and a dynamic scale."""
    configs = {}
    monkeypatch.setattr(paddle.Model, "prepare", lambda self, *args, **words: configs.update(words["amp_configs"]))
    precision = forced_mechanism("o1", dtype="float16", allow=("conv2d",), deny=("softmax",))
    net = mnist.Net(mnist.MnistSettings())
    high_level_api.prepare(precision, paddle.Model(net), paddle.optimizer.SGD(0.1, parameters=net.parameters()), None)
    assert configs["level"] == "O1"
    assert "conv2d" in configs["custom_white_list"] and "softmax" in configs["custom_black_list"]


def test_two_ranks_train_as_one_does_with_accumulation_and_go_on(tmp_path):
    """Each on its own samples, with gradients reduced once a step; here from a checkpoint of one rank."""
    words = ("data=mnist", f"data.dir={write_mnist(tmp_path / 'mnist')}", "amp=o0", "device=cpu", "steps=6")
    words = (*words, "batch=16", "accumulate=2", "train.lr=0.1", "train.dropout_conv=0", "train.dropout_dense=0")
    one, two = train("paddle", "mnist", tmp_path / "one", *words), tmp_path / "two"
    assert run("paddle", "mnist", two, *words, "checkpoint.stop_every=2") == STOPPED
    rank = ["amp_launcher/paddle/rank.py", "amp_launcher.recipes.mnist.train_paddle", *words, f"run={two}"]
    command = [sys.executable, *LAUNCH, f"--log_dir={two}/ranks", *rank]
    ended = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    record = result(two)
    assert (record["status"], record["world_size"], record["resumed_from"]) == ("done", 2, 2)
    assert record["observed"]["verdict"] == "proved"
    assert "on 2 ranks" in record["observed"]["why"]
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert record["eval"]["accuracy"] == pytest.approx(result(one)["eval"]["accuracy"])
