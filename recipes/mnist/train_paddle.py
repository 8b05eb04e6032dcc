"""The MNIST recipe: `python -m recipes.mnist.train_paddle amp=o1 [train.api=model] [run=FOLDER]`.

In a loop of our own, or by `paddle.Model.prepare(amp_configs=...)` (`train.api`).
"""

from __future__ import annotations

from collections.abc import Callable

from amp_launcher.paddle import loop
from amp_launcher.paddle.loop import Run
from amp_launcher.paddle.supervised import by_loop, by_model

import paddle
from paddle import nn
from paddle.nn.functional import cross_entropy

from ..data import images
from ..data.images import Images
from . import MnistSettings

EPSILON = 1e-6
"""Of Adadelta, as in torch."""


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
    train_by = {"loop": by_loop, "model": by_model}[hyper.api]
    run.fit(
        **train_by(run, net, optimizer, data.train.images, data.train.labels, nn.CrossEntropyLoss()),
        evaluate=make_measure(run, net, data.held_out) if len(data.held_out) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.held_out):,} held out",
        data_digest=data.digest(),
    )


def make_measure(run: Run, net: nn.Layer, data: Images) -> Callable[[], dict[str, float]]:
    """Accuracy and mean loss on the held-out images, of which each rank takes its share. Collective."""

    @paddle.no_grad()
    def measure() -> dict[str, float]:
        correct, loss = 0.0, 0.0
        net.eval()
        for indices in run.held_out(len(data)):
            labels = paddle.to_tensor(data.labels[indices])
            with run.forward():
                logits = net(paddle.to_tensor(data.images[indices])).astype("float32")
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
        net.train()
        correct, loss = run.world.sum([correct, loss])
        return {"accuracy": correct / len(data), "loss": loss / len(data)}

    return measure


if __name__ == "__main__":
    loop.start("mnist", train)
