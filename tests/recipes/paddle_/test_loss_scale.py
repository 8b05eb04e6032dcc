"""`paddle.Model` at a level: its arguments, and its loss scale on a CPU that Paddle takes for a GPU.

`tests/recipes/contract` has the loss scale in a loop of one's own.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy
import paddle
import pytest
from paddle import nn

from recipes.paddle_.precision import high_level_api
from recipes.precision.levels import PRESETS
from tests.recipes.contract.frameworks import scaling_on_a_cpu
from tests.recipes.loss_scale_rules import PaddleRule
from tests.recipes.paddle_.forced import NO_SCALE, forced

BAD = (False, True, True, True, False, False, False, True)


@pytest.mark.parametrize("preset", ["paddle", "dynamic", "static"])
def test_the_scaler_has_the_parameters_that_were_asked_for(preset):
    scale = PRESETS[preset]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU the scaler says that it does nothing
        configs = high_level_api.amp_configs(forced("o1", scale, dtype="float16"))
    assert configs["level"] == "O1"
    assert (configs["init_loss_scaling"], configs["decr_every_n_nan_or_inf"]) == (scale.init, scale.backoff_every)
    assert configs["use_dynamic_loss_scaling"] is (preset != "static")


@pytest.mark.parametrize("scale", [dataclasses.replace(PRESETS["paddle"], growth_every=3), NO_SCALE])
def test_the_loss_scale_of_paddles_model_moves_by_the_page_and_only_if_asked_for(monkeypatch, scale):
    """It backs off at the second bad step in a row. Given no scaler, `paddle.Model` would make a dynamic one."""
    scaling_on_a_cpu(monkeypatch)
    precision = forced("o1", scale, dtype="float16")
    net = nn.Linear(1, 1, bias_attr=False)
    net.weight.set_value(paddle.zeros([1, 1]))
    model = paddle.Model(net)
    sgd = paddle.optimizer.SGD(1.0, parameters=net.parameters())
    high_level_api.prepare(precision, model, sgd, lambda output, label: -output.sum())
    ones = numpy.ones((1, 1), numpy.float32)
    if scale is NO_SCALE:
        assert high_level_api.train_batch(precision, model, ones, ones)[1].loss_scale is None
        assert (precision.scale, net.weight.item()) == (None, 1.0)
        return
    rule = PaddleRule(2.0**15, 2.0, 0.5, growth_every=3, backoff_every=2)
    for bad in BAD:
        before = precision.scale
        _, outcome = high_level_api.train_batch(precision, model, (numpy.inf if bad else 1.0) * ones, ones)
        assert (outcome.overflowed, outcome.loss_scale) == (bad, before)
        assert precision.scale == rule.iterate(bad)
    assert net.weight.item() == BAD.count(False)
    assert precision.skipped_total == BAD.count(True)
