"""The same small job in each framework: weights that count their optimizers' good steps."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest

paddle = pytest.importorskip("paddle")

import keras  # noqa: E402  Paddle comes first
import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402
import torch  # noqa: E402
from paddle.amp import grad_scaler  # noqa: E402

from amp_launcher.paddle import precision as paddles  # noqa: E402
from amp_launcher.precision.levels import Amp, LossScale  # noqa: E402
from amp_launcher.tensorflow import precision as tensorflows  # noqa: E402
from amp_launcher.torch import precision as torchs  # noqa: E402
from tests.amp_launcher.paddle.forced import forced  # noqa: E402

Outcomes = list[tuple[bool | None, float | None]]
"""Of each optimizer's step: whether it overflowed, and its loss scale."""


class TorchJob:
    """One weight for each optimizer. It moves by 1 in a good step; gradients of a bad step are infinite."""

    @staticmethod
    def of(amp: Amp, scale: LossScale, device: str = "cpu") -> torchs.Precision:
        return torchs.Precision(amp, loss_scale=scale, device=device)

    def __init__(self, scale: LossScale, optimizers: int = 1) -> None:
        self.precision = self.of(Amp(level="o1", dtype="bfloat16"), scale)  # no gradient overflows by itself
        self.models = self.precision.prepare(
            torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(optimizers))
        )
        self.reset()
        self.optimizers = [self.precision.prepare(torch.optim.SGD(model.parameters(), lr=1.0)) for model in self.models]

    def reset(self) -> None:
        for model in self.models:
            torch.nn.init.zeros_(model.weight)

    def iterate(self, *bad: bool) -> Outcomes:
        outcomes = []
        for model, optimizer, overflows in zip(self.models, self.optimizers, bad, strict=True):
            optimizer.zero_grad()
            with self.precision:
                loss = -model(torch.ones(1, 1)).sum()
            self.precision.backward(loss * torch.inf if overflows else loss, optimizer)
            outcomes.append(self.precision.step(optimizer))
        return [(bool(outcome.overflowed), float(outcome.loss_scale)) for outcome in outcomes]

    def weights(self) -> list[float]:
        return [model.weight.item() for model in self.models]


class TensorFlowJob:
    @staticmethod
    def of(amp: Amp, scale: LossScale, device: str = "cpu") -> tensorflows.Precision:
        return tensorflows.Precision(amp, loss_scale=scale, device=device)

    def __init__(self, scale: LossScale, optimizers: int = 1) -> None:
        self.precision = self.of(Amp(level="o1", dtype="bfloat16"), scale)  # no gradient overflows by itself
        pairs = [self.precision.prepare(self._made, keras.optimizers.SGD(1.0)) for _ in range(optimizers)]
        self.models, self.optimizers = zip(*pairs, strict=True)
        self.reset()
        self._step = tf.function(self._traced, autograph=False)

    @staticmethod
    def _made() -> keras.Model:
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])

    def reset(self) -> None:
        for model in self.models:
            model.trainable_variables[0].assign([[0.0]])

    def _traced(self, *factors: tf.Tensor) -> Any:
        outcomes = []
        for model, optimizer, factor in zip(self.models, self.optimizers, factors, strict=True):
            with self.precision:
                loss = -tf.reduce_sum(model(tf.ones((1, 1)))) * factor
            self.precision.backward(loss, optimizer)
            outcomes.append(self.precision.step(optimizer))
        return [(outcome.overflowed, outcome.loss_scale) for outcome in outcomes]

    def iterate(self, *bad: bool) -> Outcomes:
        outcomes = self._step(*(tf.constant(numpy.inf if overflows else 1.0) for overflows in bad))
        return [(bool(overflowed), float(scale)) for overflowed, scale in outcomes]

    def weights(self) -> list[float]:
        return [float(model.trainable_variables[0].numpy()[0, 0]) for model in self.models]


class PaddleJob:
    """At o1, applied to a CPU as if it were a GPU: Paddle's own scaler disables itself on a CPU."""

    @staticmethod
    def of(amp: Amp, scale: LossScale, device: str = "cpu") -> paddles.Precision:
        return paddles.Precision(amp, loss_scale=scale, device=device)

    def __init__(self, scale: LossScale, optimizers: int = 1) -> None:
        self.precision = forced("o1", scale, dtype="float16")
        self.models = [paddle.nn.Linear(1, 1, bias_attr=False) for _ in range(optimizers)]
        self.reset()
        self.optimizers = [paddle.optimizer.SGD(1.0, parameters=net.parameters()) for net in self.models]
        self.precision.prepare(*self.models, *self.optimizers)

    def reset(self) -> None:
        for model in self.models:
            model.weight.set_value(paddle.zeros([1, 1]))

    def iterate(self, *bad: bool) -> Outcomes:
        outcomes = []
        for model, optimizer, overflows in zip(self.models, self.optimizers, bad, strict=True):
            with self.precision:
                loss = -model(paddle.full([1, 1], numpy.inf if overflows else 1.0)).sum()
            self.precision.backward(loss)
            outcomes.append(self.precision.step(optimizer))
            optimizer.clear_grad()
        return [(outcome.overflowed, outcome.loss_scale) for outcome in outcomes]

    def weights(self) -> list[float]:
        return [model.weight.item() for model in self.models]


JOBS = {"torch": TorchJob, "tensorflow": TensorFlowJob, "paddle": PaddleJob}


def scaling_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle's scaler disables itself by the place that it asks for: tell it of a GPU, and it scales on a CPU."""
    place = types.SimpleNamespace(is_gpu_place=lambda: True)
    monkeypatch.setattr(grad_scaler, "_dygraph_tracer", lambda: types.SimpleNamespace(_expected_place=place))


def public(value: object) -> Sequence[str]:
    """Names of its public attributes."""
    return [name for name in dir(value) if not name.startswith("_")]
