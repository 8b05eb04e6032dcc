"""Precision in Paddle as far as a CPU shows it: what is asked of Paddle."""

from __future__ import annotations

import dataclasses

import numpy
import paddle
import pytest
from paddle import nn
from paddle.base import core

from amp_launcher.paddle import devices
from amp_launcher.paddle.precision import Precision, high_level_api
from amp_launcher.precision import operations
from amp_launcher.precision.checks import check_precision
from amp_launcher.precision.levels import PRESETS, Amp
from amp_launcher.typed import SettingsError
from tests.amp_launcher.contract.frameworks import scaling_on_a_cpu
from tests.amp_launcher.loss_scale_rules import PaddleRule
from tests.amp_launcher.paddle.forced import NO_SCALE, float32, forced, forced_mechanism


def test_operation_lists_reach_paddle_under_all_names_it_has_for_them():
    lists = forced_mechanism("o1", allow=("elementwise_add",), deny=("softmax", "conv2d")).lists()
    assert set(lists["custom_white_list"]) >= {"add", "elementwise_add"}
    assert set(lists["custom_black_list"]) >= {"softmax", "conv2d", "depthwise_conv2d"}


def test_paddles_model_is_told_float16_or_nothing():
    with pytest.raises(SettingsError, match=r"paddle\.Model knows float16 alone"):
        high_level_api.amp_configs(forced_mechanism("o1"))
    assert high_level_api.amp_configs(float32()) is None


BAD = (False, True, True, True, False, False, False, True)


@pytest.mark.parametrize("scale", [dataclasses.replace(PRESETS["paddle"], growth_every=3), NO_SCALE])
def test_the_loss_scale_of_paddles_model_moves_by_the_page_and_only_if_asked_for(monkeypatch, scale):
    """It backs off at the second bad step in a row. Given no scaler, `paddle.Model` would make a dynamic one."""
    scaling_on_a_cpu(monkeypatch)
    precision = forced_mechanism("o1", scale, dtype="float16")
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


def test_the_operations_that_paddle_lacks_are_those_of_this_paddle():
    registered = {*core._get_registered_phi_kernels(), *core._get_all_register_op_kernels(), *dir(paddle._C_ops)}
    lacking = {name for name in operations.TORCH if not registered & set(operations.in_paddle((name,)))}
    assert lacking == operations.PADDLE_LACKS


def test_o2_of_paddles_guide_has_a_loss_scale_and_no_masters(monkeypatch):
    """In float16: its scaler unscales the half-precision gradients themselves."""
    monkeypatch.setattr(devices, "capability_of", lambda kind: (7, 0))
    amp = Amp(level="o2", dtype="float16", master_weights=False)
    check_precision(amp, PRESETS["paddle"], "paddle")
    precision = Precision(amp, loss_scale=PRESETS["paddle"], device="cuda")
    assert (precision.resolved.mechanism, precision.resolved.loss_scale.mode) == ("decorate_no_masters", "dynamic")
    asked = {}
    net = nn.Sequential(nn.Linear(2, 2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    monkeypatch.setattr(paddle.amp, "decorate", lambda **words: asked.update(words) or (net, optimizer))
    precision.prepare(net, optimizer)
    assert (asked["master_weight"], asked["dtype"]) == (False, "float16")
    with pytest.raises(SettingsError, match="loss_scale=none"):
        check_precision(amp, PRESETS["paddle"], "torch")


@pytest.mark.parametrize(("level", "masters"), [("o2", True), ("o3", False)])
def test_model_and_optimizer_are_decorated_with_or_without_masters(monkeypatch, level, masters):
    """Without its optimizer, as the page's own example has it, a model at o2 has no master weights."""
    asked = {}
    net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    monkeypatch.setattr(paddle.amp, "decorate", lambda **words: asked.update(words) or (net, optimizer))
    precision = forced(level, **({"keep_fp32": ("0",)} if level == "o2" else {}))
    precision.prepare(net)
    assert (asked["models"], asked["level"]) == (net, "O2")
    assert asked["excluded_layers"] == ([net[0], net[1]] if level == "o2" else None)
    precision.prepare(optimizer)
    assert (asked["optimizers"], asked["level"], asked["master_weight"]) == (optimizer, "O2", masters)
