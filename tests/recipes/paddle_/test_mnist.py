"""The MNIST recipe in Paddle: what it leaves, how it goes on, and its numbers beside torch's."""

from __future__ import annotations

import numpy
import paddle
import pytest

from recipes.mnist import RECIPE
from recipes.paddle_ import mnist
from recipes.paddle_.precision import high_level_api
from tests.recipes.paddle_.forced import forced
from tests.recipes.paddle_.test_simplenet import ended, losses

SMALL = ["amp=o0", "batch=32", "device=cpu"]


def run(folder, *words):
    return ended("mnist", mnist.train, folder, *SMALL, *words)


@pytest.mark.parametrize("api", ["loop", "model"])
def test_it_learns_is_proved_and_goes_on_bit_for_bit(tmp_path, api):
    """With dropout, whose random numbers follow from the step alone; by either way of training."""
    words = [f"train.api={api}", "steps=24"]
    code, result = run(tmp_path / "whole", *words)
    assert (code, result["observed"]["verdict"], result["observed"]["dtype"]) == (0, "proved", "float32")
    assert result["observed"]["param_dtypes"] == {"float32": 1_199_882}
    assert result["eval"]["accuracy"] > 0.5
    assert run(tmp_path / "parts", *words, "checkpoint.stop_every=14")[0] == 85
    assert run(tmp_path / "parts", *words)[1]["determinism"] == "exact"
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_paddles_model_is_prepared_with_what_amp_says(monkeypatch):
    """As the guide's example of its high-level interface: level, lists and a dynamic scale."""
    configs = {}
    monkeypatch.setattr(paddle.Model, "prepare", lambda self, *args, **words: configs.update(words["amp_configs"]))
    precision = forced("o1", dtype="float16", allow=("conv2d",), deny=("softmax",))
    net = mnist.Net(mnist.MnistSettings())
    high_level_api.prepare(precision, paddle.Model(net), paddle.optimizer.SGD(0.1, parameters=net.parameters()), None)
    assert (configs["level"], "conv2d" in configs["custom_white_list"], "softmax" in configs["custom_black_list"]) == (
        "O1",
        True,
        True,
    )


def test_the_layers_are_those_that_the_launcher_knows():
    net = mnist.Net(mnist.MnistSettings())
    sizes = {
        name: int(numpy.prod(layer.weight.shape)) for name, layer in net.named_sublayers() if hasattr(layer, "weight")
    }
    assert sizes == {layer.name: layer.weights for layer in RECIPE.layers(mnist.MnistSettings())}
