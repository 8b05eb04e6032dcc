"""Simplenet's step in Paddle against a loop written by hand: at o0, all that Paddle does in eager mode on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_launcher.recipes.data import random_regression
from amp_launcher.recipes.simplenet import STEPS_PER_EPOCH
from benchmarks import steps
from benchmarks.measure import Measured
from benchmarks.steps import HandStep

if TYPE_CHECKING:
    from amp_launcher.paddle.loop import Run


def simplenet(folder: Path) -> Measured:
    sizes = ("train.width=512", "batch=128", "steps=160"), "nine layers of 512, batch 128"
    return steps.step(folder, steps.sized("paddle", "simplenet", "o0", sizes), _simplenet)


def one_thread() -> None:
    from paddle.base import core

    core.set_num_threads(1)


def _simplenet(run: Run) -> HandStep:
    import paddle
    from paddle.nn.functional import mse_loss

    from amp_launcher.recipes.simplenet import train_paddle as simplenet

    hyper = run.settings.train
    data = random_regression.load(run.settings.seed, STEPS_PER_EPOCH * run.settings.batch, hyper.width)
    inputs, labels = paddle.to_tensor(data.inputs), paddle.to_tensor(data.labels)
    net = simplenet.Net(hyper)
    optimizer = paddle.optimizer.SGD(learning_rate=hyper.lr, parameters=net.parameters())

    def step(indices: Any) -> None:
        chosen = paddle.to_tensor(indices)
        loss = mse_loss(net(inputs[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step
