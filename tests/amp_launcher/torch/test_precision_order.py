"""Calls of a precision in a wrong order, and states of other models, are refused in words."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.torch.precision import Precision
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import HALVES, of
from tests.amp_launcher.torch.test_precision import INPUTS, LABELS, Training, network, sgd


def step_under_autocast(training):
    with training.precision.forward():
        loss = cross_entropy(training.model(INPUTS).float(), LABELS)
        training.precision.backward(loss)
        training.precision.step(training.optimizer)


def step_by_itself(training):
    training.backward()
    training.optimizer.step()


def half_precision_loss(training):
    training.precision.backward(cross_entropy(training.model(training.precision.input(INPUTS)), LABELS))


STOCHASTIC = {"dtype": "bfloat16", "rounding": "stochastic"}
ORDERS = {
    "a part compiled before the cast": (
        [{"level": level} for level in ("o0", "o1", "o2", "o3")],
        lambda training: training.precision.cast(nn.Sequential(torch.compile(nn.Linear(2, 2)))),
        r"module 0 is already wrapped by torch\.compile; .* comes first",
    ),
    "compiled before the cast": (
        [{"level": level} for level in ("o0", "o1", "o2", "o3")],
        lambda training: training.precision.cast(torch.compile(nn.Linear(2, 2))),
        r"the model is already wrapped by torch\.compile; .* comes first",
    ),
    "wrapped before the cast": (
        [{"level": level} for level in ("o0", "o1", "o2", "o3")],
        lambda training: training.precision.cast(nn.DataParallel(nn.Linear(2, 2))),
        "the model is already wrapped by DataParallel; .* comes first",
    ),
    "an optimizer before the cast": (
        [{"level": level} for level in ("o1", "o2", "o3")],
        lambda training: training.precision.optimizer(network(), sgd(network().parameters())),
        r"comes after precision\.cast",
    ),
    "a step past the precision": (
        [{"level": level} for level in ("o1", "o2", "o3")],
        step_by_itself,
        r"call precision\.step\(optimizer\)",
    ),
    "an optimizer that was not prepared": (
        [{"level": "o2"}, {"level": "o3", **STOCHASTIC}],
        lambda training: training.precision.step(sgd(training.model.parameters())),
        r"comes after optimizer = precision\.optimizer",
    ),
    "an optimizer prepared twice": (
        [{"level": "o2"}, {"level": "o3", **STOCHASTIC}],
        lambda training: training.precision.optimizer(training.model, training.optimizer),
        "twice for the same optimizer",
    ),
    "a step under autocast, whose next forward would see old weights": (
        [{"level": level, "dtype": dtype} for level, dtype in itertools.product(("o1", "o2"), HALVES)],
        step_under_autocast,
        r"under autocast; end precision\.forward\(\) first",
    ),
    "a half-precision loss": (
        [{"level": "o3"}],
        half_precision_loss,
        r"the loss is torch\.bfloat16 and should be float32",
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_calls_in_another_order_are_refused(order):
    amps, call, message = ORDERS[order]
    for amp in amps:
        training = Training(of(**amp))
        with pytest.raises(RuntimeError, match=message):
            call(training)


def test_a_device_that_no_level_knows_is_refused():
    with pytest.raises(SettingsError, match="device=meta is not one of cpu, cuda"):
        Precision.of(Amp(level="o1"), LossScale(), torch.device("meta"))


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {"masters": {}}, "another model's: bias, weight differ"),
        (lambda state: {"scaler": without(state["scaler"], "settings")}, "has no settings: another version"),
        (lambda state: {"scaler": without(state["scaler"], "bad_steps")}, "has no bad_steps: another version"),
        (lambda state: {"scaler": None}, "has no scaler: another version"),
    ],
    ids=["masters", "no settings of the scaler", "no bad steps of the scaler", "no scaler"],
)
def test_a_state_of_another_model_or_version_is_refused(change, message):
    precision = of("o2", "float16")
    model = precision.cast(nn.Linear(2, 2))
    precision.optimizer(model, sgd(model.parameters()))
    state = precision.state_dict()
    changed = {**state, **change(state)}
    with pytest.raises(SettingsError if "version" in message else ValueError, match=message):
        precision.load_state_dict({key: value for key, value in changed.items() if value is not None})
