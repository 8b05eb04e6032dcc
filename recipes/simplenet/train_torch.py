"""The simplenet recipe: `python -m recipes.simplenet.train_torch amp=o2 [train.width=256 batch=64] [run=FOLDER]`."""

from __future__ import annotations

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import draw_glorot, make_step

import torch
from torch import nn
from torch.nn.functional import mse_loss

from ..data import random_regression
from . import STEPS_PER_EPOCH, SimplenetSettings


class Net(nn.Module):
    """Linear layers with nothing between them: [batch, width] to [batch, width]."""

    def __init__(self, settings: SimplenetSettings) -> None:
        super().__init__()
        self.linears = nn.Sequential(*(nn.Linear(settings.width, settings.width) for _ in range(settings.layers)))
        draw_glorot(self)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linears(inputs)


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    data = random_regression.load(settings.seed, STEPS_PER_EPOCH * settings.batch_size, hyper.width)
    inputs = torch.from_numpy(data.inputs).to(world.device)
    labels = torch.from_numpy(data.labels).to(world.device)

    net = precision.prepare(Net(hyper).to(world.device))
    model = run.wrap(net)
    optimizer = precision.prepare(torch.optim.SGD(net.parameters(), lr=hyper.lr))

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        return mse_loss(model(inputs[chosen]), labels[chosen])

    run.fit(
        model=net,
        optimizers=[optimizer],
        step=make_step(run, model, optimizer, loss_of),
        evaluate=None,
        samples=len(data),
        data=f"random numbers: {len(data):,} pairs of {hyper.width:,}",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("simplenet", train)
