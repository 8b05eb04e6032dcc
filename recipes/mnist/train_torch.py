"""The MNIST recipe: `python -m recipes.mnist.train_torch amp=o2 batch=512 [run=FOLDER]`."""

from __future__ import annotations

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import make_step, measure, to_device

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..data import images
from . import MnistSettings


class Net(nn.Sequential):
    """Two convolutions and two dense layers: float images [batch, 1, 28, 28] to logits [batch, 10]."""

    def __init__(self, settings: MnistSettings) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout1 = nn.Dropout(settings.dropout_conv)
        self.flatten = nn.Flatten()
        self.dense1 = nn.Linear(9216, 128)
        self.relu3 = nn.ReLU()
        self.dropout2 = nn.Dropout(settings.dropout_dense)
        self.dense2 = nn.Linear(128, 10)


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    data = world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    inputs, labels = to_device(data.train, world.device)
    aside, aside_labels = to_device(data.held_out, world.device)

    net = precision.prepare(Net(hyper).to(world.device))
    model = run.wrap(net)
    optimizer = precision.prepare(torch.optim.Adadelta(net.parameters(), lr=hyper.lr, rho=hyper.rho))

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        """Of one micro-batch, whose indices have shape [samples]."""
        return cross_entropy(model(inputs[chosen]), labels[chosen])

    def evaluate() -> dict[str, float]:
        """Accuracy and mean loss on the held-out images, each rank taking its share of them."""
        shares = (torch.from_numpy(indices).to(world.device) for indices in run.held_out(len(aside_labels)))
        return measure(run, net, ((aside[indices], aside_labels[indices]) for indices in shares), len(aside_labels))

    run.fit(
        model=net,
        optimizers=[optimizer],
        step=make_step(run, model, optimizer, loss_of, hyper.clip),
        evaluate=evaluate if len(data.held_out) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.held_out):,} held out",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("mnist", train)
