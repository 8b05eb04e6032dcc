"""The GAN recipe: `python -m recipes.gan.train_torch amp=o2 data.dir=FOLDER batch=4096 [run=FOLDER]`."""

from __future__ import annotations

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Loss, Run
from amp_launcher.torch.precision import StepOutcome
from amp_launcher.torch.precision.base import joint_outcome
from amp_launcher.torch.supervised import accumulate, draw_glorot, to_device

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..data import images
from . import (
    DISCRIMINATOR,
    DROPOUT,
    EPSILON,
    KERNEL,
    NOISE,
    NORM_EPSILON,
    NORM_MOMENTUM,
    RMSPROP_DECAY,
    SEED_SIDE,
    GanSettings,
)


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=NORM_EPSILON, momentum=1 - NORM_MOMENTUM)


class Generator(nn.Sequential):
    """Noise [batch, 100] to images [batch, 1, 28, 28] from 0 to 1."""

    def __init__(self, settings: GanSettings) -> None:
        super().__init__()
        first, second, third, fourth = settings.channels
        self.dense = nn.Linear(NOISE, SEED_SIDE**2 * first)
        self.image = nn.Unflatten(1, (first, SEED_SIDE, SEED_SIDE))
        self.norm1 = norm(first)
        self.conv1 = convolution(first, second)
        self.tanh1 = nn.Tanh()
        self.larger1 = nn.Upsample(scale_factor=2)
        self.norm2 = norm(second)
        self.conv2 = convolution(second, third)
        self.tanh2 = nn.Tanh()
        self.larger2 = nn.Upsample(scale_factor=2)
        self.norm3 = norm(third)
        self.conv3 = convolution(third, fourth)
        self.tanh3 = nn.Tanh()
        self.norm4 = norm(fourth)
        self.conv4 = convolution(fourth, 1)
        self.sigmoid = nn.Sigmoid()


class Discriminator(nn.Sequential):
    """Images [batch, 1, 28, 28] to logits [batch, 1], high where the image looks like a made one."""

    def __init__(self) -> None:
        super().__init__()
        inputs = 1
        for number, outputs in enumerate(DISCRIMINATOR, start=1):
            self.add_module(f"conv{number}", convolution(inputs, outputs))
            self.add_module(f"tanh{number}", nn.Tanh())
            self.add_module(f"pool{number}", nn.MaxPool2d(2))
            self.add_module(f"dropout{number}", nn.Dropout(DROPOUT))
            inputs = outputs
        self.flatten = nn.Flatten()
        self.dense = nn.Linear(3 * 3 * inputs, 1)


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    data = world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    real, _ = to_device(data.train, world.device)

    both = nn.ModuleDict({"generator": Generator(hyper), "discriminator": Discriminator()})
    draw_glorot(both)
    both = precision.prepare(both.to(world.device))
    judge = both["discriminator"]
    generator, discriminator = run.wrap(both["generator"]), run.wrap(judge)
    makers = torch.optim.Adam(both["generator"].parameters(), lr=hyper.generator_lr, eps=EPSILON, fused=True)
    judges = torch.optim.RMSprop(judge.parameters(), lr=hyper.discriminator_lr, alpha=RMSPROP_DECAY, eps=EPSILON)
    makers, judges = precision.prepare(makers, judges)

    def made(count: int) -> torch.Tensor:
        noise = torch.rand(count, NOISE, device=world.device) * 2 - 1
        return generator(noise)

    def generator_loss(chosen: torch.Tensor) -> torch.Tensor:
        """Low where the discriminator takes made images for real ones, whose label is 0."""
        logits = judge(made(len(chosen)))
        return binary_cross_entropy_with_logits(logits, labels(len(chosen), hyper, world.device)[: len(chosen)])

    def discriminator_loss(chosen: torch.Tensor) -> torch.Tensor:
        """Of as many real images as made ones."""
        with torch.no_grad():
            fake = made(len(chosen))
        logits = discriminator(torch.cat((real[chosen], fake)))
        return binary_cross_entropy_with_logits(logits, labels(len(chosen), hyper, world.device))

    def step(batch: torch.Tensor) -> tuple[Loss, StepOutcome]:
        """The generator's update, and then the discriminator's against the new generator; loss scales move once."""
        judge.requires_grad_(False)
        losses = {"generator": accumulate(run, generator, makers, batch, generator_loss)}
        judge.requires_grad_(True)
        first = precision.step(makers)
        makers.zero_grad()
        losses["discriminator"] = accumulate(run, discriminator, judges, batch, discriminator_loss)
        second = precision.step(judges)
        judges.zero_grad()
        return losses, joint_outcome([first, second])

    run.fit(
        model=both,
        optimizers=[makers, judges],
        step=step,
        evaluate=None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images",
        data_digest=data.digest(),
    )


def labels(count: int, settings: GanSettings, device: torch.device) -> torch.Tensor:
    """Of `count` real images, near 0, and `count` made ones, near 1: [2 * count, 1]; the first of each exact."""
    softened = torch.full((count, 1), settings.soften, device=device)
    softened[: int(count * settings.sharp)] = 0
    return torch.cat((softened, 1 - softened))


if __name__ == "__main__":
    loop.start("gan", train)
