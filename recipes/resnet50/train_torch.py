"""The ResNet-50 v1.5 recipe: `python -m recipes.resnet50.train_torch amp=o2 batch=256 steps=500 [run=FOLDER]`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import make_step, measure

import numpy
import torch
from amp_launcher.loop.prefetch import Prefetcher
from torch import nn
from torch.nn.functional import cross_entropy

from .. import resnet50
from ..data import imagenet
from ..data.imagenet import DEVIATION, MEAN, ImageFiles
from . import STEPS_PER_EPOCH, Block, Resnet50Settings


class Bottleneck(nn.Module):
    """A block of `recipes.resnet50`: the stride is in the 3x3 convolution, and the last norm begins at zero."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(block.inputs, block.width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(block.width)
        self.conv = nn.Conv2d(block.width, block.width, 3, block.stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(block.width)
        self.expand = nn.Conv2d(block.width, block.outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(block.outputs)
        nn.init.zeros_(self.norm3.weight)
        self.project: nn.Module = nn.Identity()
        self.norm4: nn.Module = nn.Identity()
        if block.projects:
            self.project = nn.Conv2d(block.inputs, block.outputs, 1, block.stride, bias=False)
            self.norm4 = nn.BatchNorm2d(block.outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.norm1(self.reduce(inputs)))
        hidden = self.relu(self.norm2(self.conv(hidden)))
        hidden = self.norm3(self.expand(hidden))
        return self.relu(hidden + self.norm4(self.project(inputs)))


class Net(nn.Module):
    """Float images [batch, 3, size, size] to logits [batch, classes]."""

    def __init__(self, settings: Resnet50Settings) -> None:
        super().__init__()
        blocks = list(resnet50.blocks(settings.width, settings.stages))
        self.stem = nn.Conv2d(3, settings.width, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(settings.width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        stages: dict[str, list[nn.Module]] = {}
        for block in blocks:
            stages.setdefault(block.name.split(".")[0], []).append(Bottleneck(block))
        for name, stage in stages.items():
            self.add_module(name, nn.Sequential(*stage))
        self._stages = tuple(stages)
        self.classifier = nn.Linear(blocks[-1].outputs, settings.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.pool(self.relu(self.norm(self.stem(images))))
        for name in self._stages:
            hidden = self.get_submodule(name)(hidden)
        return self.classifier(hidden.mean((2, 3)))


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    net = precision.prepare(Net(hyper).to(world.device, memory_format=torch.channels_last))
    model = run.wrap(net)
    decayed = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in net.parameters() if parameter.ndim == 1]  # of norms, and the last layer's bias
    groups = [{"params": decayed, "weight_decay": hyper.weight_decay}, {"params": others, "weight_decay": 0.0}]
    sgd = torch.optim.SGD(groups, lr=hyper.lr, momentum=hyper.momentum, fused=world.fused)
    optimizer = precision.prepare(sgd)

    def loss_of(micro_batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = micro_batch
        logits = model(images)
        return cross_entropy(logits, labels, label_smoothing=hyper.label_smoothing)

    step = make_step(run, model, optimizer, loss_of)
    common: dict[str, Any] = {"model": net, "optimizers": [optimizer]}
    if settings.data.name == "synthetic":
        samples = STEPS_PER_EPOCH * settings.batch_size
        batch, digest = synthetic_batch(run)
        run.fit(
            **common,
            step=lambda indices: step(batch),
            evaluate=None,
            samples=samples,
            schedule=resnet50.schedule(settings, samples),
            data=f"one random batch of {hyper.image_size}x{hyper.image_size} images again and again",
            data_digest=digest,
        )
        return

    known, unseen = world.rank_zero_first(lambda: imagenet.load(settings.data, hyper.image_size, hyper.classes))

    def load(epoch: int, indices: numpy.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
        images, labels = known.augmented(settings.seed, epoch, indices)
        return [(world.pinned(image), world.pinned(label)) for image, label in zip(images, labels, strict=True)]

    run.fit(
        **common,
        step=lambda batch: step([_on_device(images, labels, world.device) for images, labels in batch]),
        load=load,
        evaluate=lambda: measure(run, net, _batches(run, unseen), len(unseen)),
        samples=len(known),
        schedule=resnet50.schedule(settings, len(known)),
        data=f"{settings.data.name}: {len(known):,} images, {len(unseen):,} held out",
        data_digest=known.digest(),
    )


def synthetic_batch(run: Run) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], str]:
    """This rank's part of one random batch, micro-batch by micro-batch, in the device's memory; and its digest."""
    settings, hyper, world = run.settings, run.settings.train, run.world
    images, labels, digest = imagenet.synthetic(settings.seed, settings.batch_size, hyper.image_size, hyper.classes)
    mine = numpy.arange(settings.batch_size).reshape(settings.accumulate, world.size, -1)[:, world.rank]
    return [
        _on_device(torch.from_numpy(images[indices]), torch.from_numpy(labels[indices]), world.device)
        for indices in mine
    ], digest


def _batches(run: Run, unseen: ImageFiles) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's held-out images, loaded ahead."""
    positions = list(run.held_out(len(unseen), max(1, run.settings.batch_size // run.world.size)))
    prefetcher = Prefetcher(unseen.plain)
    prefetcher.start(iter(positions))
    for _ in positions:
        (images, labels), _ = prefetcher.take()
        yield _on_device(torch.from_numpy(images), torch.from_numpy(labels), run.world.device)


def _on_device(images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [batch, height, width, 3] as normalized floats [batch, 3, height, width], which keep their layout."""
    floats = images.to(device, non_blocking=True).permute(0, 3, 1, 2).float().div_(255)
    mean, deviation = _statistics(device)
    return floats.sub_(mean).div_(deviation), labels.to(device, non_blocking=True)


@functools.cache
def _statistics(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """On the device once and for all: a copy in every step would wait for it."""
    mean, deviation = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return mean, deviation


if __name__ == "__main__":
    loop.start("resnet50", train)
