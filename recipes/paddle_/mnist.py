"""The MNIST recipe: `python -m recipes.paddle_.mnist amp=o1 [train.api=model] [run=FOLDER]`.

In a loop of its own, or by `paddle.Model.prepare(amp_configs=...)` (`train.api`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import paddle
from paddle import nn
from paddle.nn.functional import cross_entropy

from recipes.data import images
from recipes.data.images import Images
from recipes.mnist import MnistSettings
from recipes.paddle_ import loop
from recipes.paddle_.loop import Run
from recipes.paddle_.observe.observer import Witness
from recipes.paddle_.precision.base import StepOutcome
from recipes.paddle_.state import Eager

HELD_OUT_BATCH = 1000
EPSILON = 1e-6
"""Of Adadelta, as torch has it."""


class Net(nn.Sequential):
    """Two convolutions and two dense layers: float images [batch, 1, 28, 28] to logits [batch, 10]."""

    def __init__(self, settings: MnistSettings) -> None:
        super().__init__(
            ("conv1", nn.Conv2D(1, 32, 3)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2D(32, 64, 3)),
            ("relu2", nn.ReLU()),
            ("pool", nn.MaxPool2D(2)),
            ("dropout1", nn.Dropout(settings.dropout_conv)),
            ("flatten", nn.Flatten()),
            ("dense1", nn.Linear(9216, 128)),
            ("relu3", nn.ReLU()),
            ("dropout2", nn.Dropout(settings.dropout_dense)),
            ("dense2", nn.Linear(128, 10)),
        )


def train(run: Run) -> None:
    settings, hyper = run.settings, run.settings.train
    data = run.world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    net = Net(hyper)
    optimizer = paddle.optimizer.Adadelta(
        learning_rate=hyper.lr,
        rho=hyper.rho,
        epsilon=EPSILON,
        parameters=net.parameters(),
        grad_clip=None if hyper.clip is None else nn.ClipGradByGlobalNorm(hyper.clip),
    )
    how = {"loop": by_loop, "model": by_model}[hyper.api]
    run.fit(
        **how(run, net, optimizer, data.train),
        evaluate=make_measure(run, net, data.held_out) if len(data.held_out) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.held_out):,} held out",
        data_digest=data.digest(),
    )


def by_loop(run: Run, net: nn.Layer, optimizer: Any, data: Images) -> dict[str, Any]:
    precision = run.precision
    inputs, labels = paddle.to_tensor(data.images), paddle.to_tensor(data.labels)
    net, optimizer = precision.decorate(net, optimizer)
    model = run.world.wrap(net)

    def step(batch: numpy.ndarray) -> tuple[paddle.Tensor, StepOutcome]:
        """One optimizer step on samples whose indices have shape [micro-batches, samples in each]."""
        total = paddle.zeros([])
        for number, chosen in enumerate(paddle.to_tensor(batch), start=1):
            with run.world.gradients(model, last=number == len(batch)):
                with precision.forward():
                    logits = model(inputs[chosen])
                loss = cross_entropy(logits.astype("float32"), labels[chosen]) / len(batch)
                precision.backward(loss)
            total += loss.detach()
        outcome = precision.step(optimizer)
        precision.update()
        optimizer.clear_grad()
        return total, outcome

    held = Eager(model=net, optimizer=optimizer)
    return {"held": held, "witness": Witness(net, precision), "optimizer": optimizer, "step": step}


def by_model(run: Run, net: nn.Layer, optimizer: Any, data: Images) -> dict[str, Any]:
    """`paddle.Model`, which casts, scales and steps by itself as its `amp_configs` say."""
    precision = run.precision
    model = paddle.Model(net)
    precision.prepare(model, optimizer, nn.CrossEntropyLoss())

    def step(batch: numpy.ndarray) -> tuple[float, StepOutcome]:
        (chosen,) = batch
        return precision.train_batch(model, data.images[chosen], data.labels[chosen])

    held = Eager(model=net, optimizer=optimizer)
    return {"held": held, "witness": Witness(net, precision), "optimizer": optimizer, "step": step}


def make_measure(run: Run, net: nn.Layer, data: Images) -> Callable[[], dict[str, float]]:
    """Accuracy and mean loss on what is held out, each rank taking its share of it. Collective."""
    mine = slice(run.world.rank, None, run.world.size)
    images_aside, labels_aside = data.images[mine], data.labels[mine]

    @paddle.no_grad()
    def measure() -> dict[str, float]:
        correct, loss = 0.0, 0.0
        net.eval()
        for first in range(0, len(labels_aside), HELD_OUT_BATCH):
            inputs, labels = (
                paddle.to_tensor(each[first : first + HELD_OUT_BATCH]) for each in (images_aside, labels_aside)
            )
            with run.precision.forward():
                logits = net(inputs)
            logits = logits.astype("float32")
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
        net.train()
        correct, loss = run.world.sum([correct, loss])
        return {"accuracy": correct / len(data), "loss": loss / len(data)}

    return measure


if __name__ == "__main__":
    loop.start("mnist", train)
