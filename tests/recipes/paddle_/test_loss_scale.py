"""Paddle's own scaler, by the rules of its page: on a CPU, which it is told is a GPU."""

from __future__ import annotations

import dataclasses
import json
import types
import warnings

import numpy
import paddle
import pytest
from paddle import nn
from paddle.amp import grad_scaler

from recipes.paddle_.precision import high_level_api
from recipes.precision.levels import PRESETS, LossScale
from tests.recipes.loss_scale_rules import PaddleRule
from tests.recipes.paddle_.forced import NO_SCALE, forced


@pytest.fixture
def scaling(monkeypatch):
    """Paddle's scaler switches itself off on a CPU, by the place that it asks for; told of a GPU, it scales there."""
    place = types.SimpleNamespace(is_gpu_place=lambda: True)
    monkeypatch.setattr(grad_scaler, "_dygraph_tracer", lambda: types.SimpleNamespace(_expected_place=place))


BAD = (False, True, True, True, False, False, False, True)


class Scaled:
    """One weight that moves by 1 in every good step; gradients of a bad one are infinite."""

    def __init__(self, loss_scale: LossScale) -> None:
        self.precision = forced("o1", loss_scale, dtype="float16")
        self.net = nn.Linear(1, 1, bias_attr=False)
        self.net.weight.set_value(paddle.zeros([1, 1]))
        self.sgd = paddle.optimizer.SGD(1.0, parameters=self.net.parameters())
        self.take = self.by_loop

    def by_loop(self, value: float):
        optimizer = self.precision.optimizer(self.precision.cast(self.net), self.sgd)
        with self.precision.forward():
            found = self.net(paddle.full([1, 1], value))
        self.precision.backward(-found.sum())
        outcome = self.precision.step(optimizer)
        self.precision.update()
        optimizer.clear_grad()
        return outcome

    def by_model(self) -> None:
        model = paddle.Model(self.net)
        high_level_api.prepare(self.precision, model, self.sgd, lambda found, label: -found.sum())
        ones = numpy.ones((1, 1), numpy.float32)
        self.take = lambda value: high_level_api.train_batch(self.precision, model, value * ones, ones)[1]


@pytest.mark.parametrize("preset", ["paddle", "dynamic", "static"])
def test_the_scaler_has_the_parameters_that_were_asked_for(preset):
    scale = PRESETS[preset]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU the scaler says that it does nothing
        configs = high_level_api.amp_configs(forced("o1", scale, dtype="float16"))
    assert configs["level"] == "O1"
    assert (configs["init_loss_scaling"], configs["decr_every_n_nan_or_inf"]) == (scale.init, scale.backoff_every)
    assert configs["use_dynamic_loss_scaling"] is (preset != "static")


@pytest.mark.parametrize("api", ["loop", "model"])
def test_the_loss_scale_moves_by_the_page_in_a_loop_and_in_paddles_model(scaling, api):
    """Backing off at the second bad step in a row, each of which is skipped: with Paddle's own scaler."""
    scaled = Scaled(dataclasses.replace(PRESETS["paddle"], growth_every=3))
    if api == "model":
        scaled.by_model()
    rule = PaddleRule(2.0**15, 2.0, 0.5, growth_every=3, backoff_every=2)
    for bad in BAD:
        before = scaled.precision.scale
        outcome = scaled.take(numpy.inf if bad else 1.0)
        assert (outcome.overflowed, outcome.loss_scale) == (bad, before)
        assert scaled.precision.scale == rule.iterate(bad)
    assert scaled.net.weight.item() == BAD.count(False)
    assert scaled.precision.skipped_total == BAD.count(True)


def test_a_saved_scale_goes_on_as_one_that_was_not_saved(scaling):
    settings = dataclasses.replace(PRESETS["paddle"], growth_every=3)
    whole, first, second = Scaled(settings), Scaled(settings), Scaled(settings)
    scales = []
    for at, bad in enumerate(BAD):
        if at == 3:
            saved = json.loads(json.dumps(first.precision.state_dict()))
            second.precision.load_state_dict(saved)
        parts = first if at < 3 else second
        for each in (whole, parts):
            each.take(numpy.inf if bad else 1.0)
        scales.append((whole.precision.scale, parts.precision.scale))
    assert all(one == other for one, other in scales)
    assert second.precision.skipped_total == whole.precision.skipped_total


def test_a_static_scale_never_moves_and_its_bad_steps_are_skipped(scaling):
    scaled = Scaled(PRESETS["static"])
    assert [scaled.take(numpy.inf if bad else 1.0).overflowed for bad in BAD] == list(BAD)
    assert scaled.precision.scale == 128.0
    assert scaled.net.weight.item() == BAD.count(False)


def test_paddles_model_scales_nothing_where_no_scale_was_asked_for(scaling):
    """Told nothing, it would make itself a dynamic scaler."""
    scaled = Scaled(NO_SCALE)
    scaled.by_model()
    assert scaled.take(1.0).loss_scale is None
    assert scaled.precision.scale is None
    assert scaled.net.weight.item() == 1.0


@pytest.mark.parametrize("first_is_bad", [True, False])
def test_with_two_optimizers_an_overflow_of_either_makes_the_iteration_bad(scaling, first_is_bad):
    """Paddle's scaler remembers the last optimizer's overflow alone."""
    precision = forced("o1", dataclasses.replace(PRESETS["dynamic"], init=64.0), dtype="float16")
    nets = [nn.Linear(1, 1, bias_attr=False) for _ in range(2)]
    optimizers = [paddle.optimizer.SGD(1.0, parameters=each.parameters()) for each in nets]

    def iterate(*bad):
        outcomes = []
        for net, optimizer, one in zip(nets, optimizers, bad, strict=True):
            precision.backward(net(paddle.full([1, 1], numpy.inf if one else 1.0)).sum())
            outcomes.append(precision.step(optimizer).overflowed)
            optimizer.clear_grad()
        precision.update()
        return outcomes, precision.scale

    bad = (first_is_bad, not first_is_bad)
    assert iterate(*bad) == (list(bad), 32.0)
    assert iterate(False, False) == ([False, False], 32.0)
    assert precision.skipped_total == 1
