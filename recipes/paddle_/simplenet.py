"""The simplenet recipe: `python -m recipes.paddle_.simplenet amp=o2 [train.width=256 batch=64] [run=FOLDER]`.

In the three ways that Paddle trains: a loop of one's own, `paddle.Model`, and a static graph (`train.api`).
"""

from __future__ import annotations

from typing import Any

import numpy
import paddle
from paddle import nn
from paddle.nn.functional import mse_loss

from recipes.data import random_regression
from recipes.data.random_regression import Pairs
from recipes.paddle_ import loop, static_graph
from recipes.paddle_.loop import Run
from recipes.paddle_.observe.observer import Witness
from recipes.paddle_.precision.base import StepOutcome
from recipes.paddle_.state import Eager
from recipes.simplenet import STEPS_PER_EPOCH, SimplenetSettings


class Net(nn.Layer):
    """Linear layers with nothing between them: [batch, width] to [batch, width]. Paddle draws them by Glorot itself."""

    def __init__(self, settings: SimplenetSettings) -> None:
        super().__init__()
        self.linears = nn.LayerList([nn.Linear(settings.width, settings.width) for _ in range(settings.layers)])

    def forward(self, inputs: Any) -> Any:
        for number, linear in enumerate(self.linears):
            # Of a static graph alone: what is in here may run in half precision, and the first layer is not.
            with static_graph.guard(number > 0):
                inputs = linear(inputs)
        return inputs


def train(run: Run) -> None:
    settings, hyper = run.settings, run.settings.train
    data = random_regression.load(settings.seed, STEPS_PER_EPOCH * settings.batch, hyper.width)
    how = {"loop": by_loop, "model": by_model, "static": by_static_graph}[hyper.api]
    run.fit(
        **how(run, data),
        samples=len(data),
        data=f"random numbers: {len(data):,} pairs of {hyper.width:,}",
        data_digest=data.digest(),
    )


def by_loop(run: Run, data: Pairs) -> dict[str, Any]:
    precision, hyper = run.precision, run.settings.train
    inputs, labels = paddle.to_tensor(data.inputs), paddle.to_tensor(data.labels)
    net = Net(hyper)
    sgd = paddle.optimizer.SGD(learning_rate=hyper.lr, parameters=net.parameters())
    net, optimizer = precision.decorate(net, sgd)
    model = run.world.wrap(net)

    def step(batch: numpy.ndarray) -> tuple[paddle.Tensor, StepOutcome]:
        """One optimizer step on samples whose indices have shape [micro-batches, samples in each]."""
        total = paddle.zeros([])
        for number, chosen in enumerate(paddle.to_tensor(batch), start=1):
            with run.world.gradients(model, last=number == len(batch)):
                with precision.forward():
                    found = model(inputs[chosen])
                loss = mse_loss(found.astype("float32"), labels[chosen]) / len(batch)
                precision.backward(loss)
            total += loss.detach()
        outcome = precision.step(optimizer)
        precision.update()
        optimizer.clear_grad()
        return total, outcome

    held = Eager(model=net, optimizer=optimizer)
    return {"held": held, "witness": Witness(net, precision), "optimizer": optimizer, "step": step}


def by_model(run: Run, data: Pairs) -> dict[str, Any]:
    """`paddle.Model`, which casts, scales and steps by itself as its `amp_configs` say."""
    precision, hyper = run.precision, run.settings.train
    net = Net(hyper)
    optimizer = paddle.optimizer.SGD(learning_rate=hyper.lr, parameters=net.parameters())
    model = paddle.Model(net)
    precision.prepare(model, optimizer, nn.MSELoss())

    def step(batch: numpy.ndarray) -> tuple[float, StepOutcome]:
        (chosen,) = batch
        return precision.train_batch(model, data.inputs[chosen], data.labels[chosen])

    held = Eager(model=net, optimizer=optimizer)
    return {"held": held, "witness": Witness(net, precision), "optimizer": optimizer, "step": step}


def by_static_graph(run: Run, data: Pairs) -> dict[str, Any]:
    settings, hyper = run.settings, run.settings.train

    def optimizer(net: nn.Layer) -> Any:
        return paddle.optimizer.SGD(learning_rate=hyper.lr, parameters=net.parameters())

    graph = static_graph.StaticGraph(
        make=lambda: Net(hyper),
        make_optimizer=optimizer,
        precision=run.precision,
        shape=(settings.batch, hyper.width),
        guarded=hyper.fp16_guard,
        kind=run.world.kind,
        seed=settings.seed,
    )

    def step(batch: numpy.ndarray) -> tuple[float, StepOutcome]:
        (chosen,) = batch
        return graph.step(data.inputs[chosen], data.labels[chosen])

    witness = static_graph.GraphWitness(graph, run.precision)
    return {"held": graph, "witness": witness, "optimizer": graph.optimizer, "step": step}


if __name__ == "__main__":
    loop.start("simplenet", train)
