"""Optimizers beside torch's of the same name, while the rate moves."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf
import torch

from amp_launcher.tensorflow.optimizers import Momentum, RMSprop

PAIRS = {
    "momentum": (
        lambda: Momentum(0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    ),
    "none": (lambda: Momentum(0.1, momentum=0.0), lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "rmsprop": (
        lambda: RMSprop(0.1, rho=0.9, epsilon=1e-7),
        lambda parameters: torch.optim.RMSprop(parameters, 0.1, alpha=0.9, eps=1e-7),
    ),
}


@pytest.mark.parametrize(("make", "theirs"), PAIRS.values(), ids=PAIRS)
def test_it_takes_torchs_steps_with_small_gradients_and_a_rate_that_moves(make, theirs):
    begun = numpy.array([1.0, -2.0, 0.5], numpy.float32)
    variable, parameter = keras.Variable(begun), torch.nn.Parameter(torch.from_numpy(begun.copy()))
    ours, other = make(), theirs([parameter])
    ours.build([variable])
    step = tf.function(lambda gradient, rate: (ours.learning_rate.assign(rate), ours.apply([gradient])))
    random = numpy.random.default_rng(0)
    for rate in (0.01, 0.05, 0.1, 0.03):
        gradient = (1e-4 * random.normal(size=3)).astype(numpy.float32)
        step(tf.constant(gradient), tf.constant(rate))
        parameter.grad = torch.from_numpy(gradient)
        other.param_groups[0]["lr"] = rate
        other.step()
        assert variable.numpy() - begun == pytest.approx(parameter.detach().numpy() - begun, rel=1e-3)
