"""The simplenet recipe: `python -m recipes.simplenet.train_paddle amp=o2 [train.width=256 batch=64] [run=FOLDER]`.

In the three ways that Paddle trains: a loop of our own, `paddle.Model`, and a static graph (`train.api`).
"""

from __future__ import annotations

from typing import Any

from amp_launcher.paddle import loop, static_graph
from amp_launcher.paddle.loop import Run
from amp_launcher.paddle.observe.graph_observer import GraphObserver
from amp_launcher.paddle.supervised import by_loop, by_model

import numpy
import paddle
from amp_launcher.precision.step_outcome import StepOutcome
from paddle import nn

from ..data import random_regression
from ..data.random_regression import Pairs
from . import STEPS_PER_EPOCH, SimplenetSettings


class Net(nn.Layer):
    """Linear layers with nothing between them: [batch, width] to [batch, width], with Paddle's Glorot weights."""

    def __init__(self, settings: SimplenetSettings) -> None:
        super().__init__()
        self.linears = nn.LayerList([nn.Linear(settings.width, settings.width) for _ in range(settings.layers)])

    def forward(self, inputs: Any) -> Any:
        for number, linear in enumerate(self.linears):
            # In a static graph all layers but the first may run in half precision.
            with static_graph.guard(number > 0):
                inputs = linear(inputs)
        return inputs


def train(run: Run) -> None:
    settings, hyper = run.settings, run.settings.train
    data = random_regression.load(settings.seed, STEPS_PER_EPOCH * settings.batch_size, hyper.width)
    if hyper.api == "static":
        parts = by_static_graph(run, data)
    else:
        net = Net(hyper)
        train_by = {"loop": by_loop, "model": by_model}[hyper.api]
        parts = train_by(run, net, make_optimizer(run, net), data.inputs, data.labels, nn.MSELoss())
    run.fit(
        **parts,
        samples=len(data),
        data=f"random numbers: {len(data):,} pairs of {hyper.width:,}",
        data_digest=data.digest(),
    )


def make_optimizer(run: Run, net: nn.Layer) -> Any:
    return paddle.optimizer.SGD(learning_rate=run.settings.train.lr, parameters=net.parameters())


def by_static_graph(run: Run, data: Pairs) -> dict[str, Any]:
    """The arguments of `Run.fit` for a static graph."""
    settings, hyper = run.settings, run.settings.train
    graph = static_graph.StaticGraph(
        make=lambda: Net(hyper),
        make_optimizer=lambda net: make_optimizer(run, net),
        precision=run.precision,
        shape=(settings.batch_size, hyper.width),
        guarded=hyper.fp16_guard,
        kind=run.world.kind,
        seed=settings.seed,
    )

    def step(batch: numpy.ndarray) -> tuple[float, StepOutcome]:
        (chosen,) = batch
        return graph.step(data.inputs[chosen], data.labels[chosen])

    observer = GraphObserver(graph, run.precision.resolved)
    return {"tensors": graph, "observer": observer, "optimizer": graph.optimizer, "step": step}


if __name__ == "__main__":
    loop.start("simplenet", train)
