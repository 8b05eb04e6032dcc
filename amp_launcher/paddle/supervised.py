"""Training on inputs and labels: in a loop of our own, or by `paddle.Model`."""

from __future__ import annotations

from typing import Any

import numpy
import paddle
from paddle import nn

from amp_launcher.paddle.loop import Run
from amp_launcher.paddle.observe.observer import PrecisionObserver
from amp_launcher.paddle.precision import high_level_api
from amp_launcher.paddle.state import EagerTensors
from amp_launcher.precision.step_outcome import StepOutcome


def by_loop(
    run: Run, net: nn.Layer, optimizer: Any, inputs: numpy.ndarray, labels: numpy.ndarray, loss_of: nn.Layer
) -> dict[str, Any]:
    """The arguments of `Run.fit` for a loop of our own. `loss_of` gives the mean loss from outputs and labels."""
    precision = run.calls
    on_device, truth = paddle.to_tensor(inputs), paddle.to_tensor(labels)
    net, optimizer = precision.prepare(net, optimizer)
    model = run.world.wrap(net)

    def step(batch: numpy.ndarray) -> tuple[paddle.Tensor, StepOutcome]:
        """One optimizer step on samples whose indices have shape [micro-batches, samples in each]."""
        total = paddle.zeros([])
        for number, chosen in enumerate(paddle.to_tensor(batch), start=1):
            with run.world.gradients(model, last=number == len(batch)):
                with precision:
                    loss = loss_of(model(on_device[chosen]), truth[chosen]) / len(batch)
                precision.backward(loss)
            total += loss.detach()
        outcome = precision.step(optimizer)
        optimizer.clear_grad()
        return total, outcome

    return _parts(run, net, optimizer, step)


def by_model(
    run: Run, net: nn.Layer, optimizer: Any, inputs: numpy.ndarray, labels: numpy.ndarray, loss_of: nn.Layer
) -> dict[str, Any]:
    """The arguments of `Run.fit` for `paddle.Model`, which casts, scales the loss and steps by its `amp_configs`."""
    precision = run.precision
    model = paddle.Model(net)
    high_level_api.prepare(precision, model, optimizer, loss_of)

    def step(batch: numpy.ndarray) -> tuple[float, StepOutcome]:
        (chosen,) = batch
        return high_level_api.train_batch(precision, model, inputs[chosen], labels[chosen])

    return _parts(run, net, optimizer, step)


def _parts(run: Run, net: nn.Layer, optimizer: Any, step: Any) -> dict[str, Any]:
    return {
        "tensors": EagerTensors(model=net, optimizer=optimizer),
        "observer": PrecisionObserver(net, run.precision.resolved),
        "optimizer": optimizer,
        "step": step,
    }
