"""The EfficientNet recipe: `python -m recipes.efficientnet.train_torch amp=o2 data.dir=FOLDER [run=FOLDER]`."""

from __future__ import annotations

from collections.abc import Iterator

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import draw_glorot, make_step, measure, to_device

import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, interpolate, pad

from .. import efficientnet
from ..data import cifar
from . import ADAM_EPSILON, CLASSES, HEAD, NORM_EPSILON, NORM_MOMENTUM, STEM, Block, EfficientnetSettings


class Convolution(nn.Conv2d):
    """A convolution whose output is as large as its input, divided by the stride and rounded up, as Keras's "same"."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        missing = [
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, kernel, stride in zip(inputs.shape[2:], self.kernel_size, self.stride, strict=True)
        ]
        if any(pixels % 2 for pixels in missing):
            down, across = missing
            inputs = pad(inputs, (across // 2, across - across // 2, down // 2, down - down // 2))
            missing = [0, 0]
        # Where all sides get the same, the convolution pads by itself: a padded copy costs as much as a norm.
        padding = tuple(pixels // 2 for pixels in missing)
        return conv2d(inputs, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=NORM_EPSILON, momentum=1 - NORM_MOMENTUM)


class InvertedResidual(nn.Module):
    """A block of `amp_launcher.recipes.efficientnet`."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        wide = block.expanded
        self.expand = Convolution(block.inputs, wide, 1)
        self.norm1 = norm(wide)
        self.depthwise = Convolution(wide, wide, block.kernel, block.stride, groups=wide)
        self.norm2 = norm(wide)
        self.squeeze = Convolution(wide, block.squeezed, 1)
        self.excite = Convolution(block.squeezed, wide, 1)
        self.project = Convolution(wide, block.outputs, 1)
        self.norm3 = norm(block.outputs)
        self.relu = nn.ReLU6()  # in place, torch would copy what its gradient needs
        self.adds = block.adds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.norm1(self.expand(inputs)))
        hidden = self.relu(self.norm2(self.depthwise(hidden)))
        share = self.excite(self.relu(self.squeeze(hidden.mean((2, 3), keepdim=True)))).sigmoid()
        hidden = self.norm3(self.project(share * hidden))
        return hidden + inputs if self.adds else hidden


class Net(nn.Module):
    """Float images [batch, 3, size, size] to logits [batch, 100]."""

    def __init__(self, settings: EfficientnetSettings) -> None:
        super().__init__()
        stem, head = settings.channels(STEM), settings.channels(HEAD)
        self.stem = Convolution(3, stem, 3, 2)
        self.norm1 = norm(stem)
        blocks = list(efficientnet.blocks(settings))
        self.blocks = nn.Sequential(*(InvertedResidual(block) for block in blocks))
        self.head = Convolution(blocks[-1].outputs, head, 1)
        self.norm2 = norm(head)
        self.relu = nn.ReLU6()
        self.classifier = nn.Linear(head, CLASSES)
        draw_glorot(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.relu(self.norm1(self.stem(images))))
        return self.classifier(self.relu(self.norm2(self.head(hidden))).mean((2, 3)))


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    data = world.rank_zero_first(lambda: cifar.load(settings.data, settings.seed))
    images, labels = to_device(data.train, world.device)
    unseen = {"": to_device(data.validation, world.device), "test_": to_device(data.test, world.device)}

    net = precision.prepare(Net(hyper).to(world.device, memory_format=torch.channels_last))
    model = run.wrap(net)
    adam = torch.optim.Adam(net.parameters(), lr=hyper.lr, eps=ADAM_EPSILON, fused=True)
    optimizer = precision.prepare(adam)

    def resized(pixels: torch.Tensor) -> torch.Tensor:
        """Bytes [batch, 3, 32, 32] as floats from 0 to 1 [batch, 3, size, size]."""
        floats = pixels.contiguous(memory_format=torch.channels_last).float()
        return interpolate(floats, size=2 * (hyper.side,), mode="bilinear", align_corners=False) / 255

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(resized(images[chosen])), labels[chosen])

    def batches(pixels: torch.Tensor, truth: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for indices in run.held_out(len(truth), max(1, settings.batch_size // world.size)):
            chosen = torch.from_numpy(indices).to(world.device)
            yield resized(pixels[chosen]), truth[chosen]

    def evaluate() -> dict[str, float]:
        """Of the validation images, and of the test images, which nothing is chosen by."""
        measured = {}
        for prefix, part in unseen.items():
            for name, value in measure(run, net, batches(*part), len(part[1])).items():
                measured[prefix + name] = value
        return measured

    run.fit(
        model=net,
        optimizers=[optimizer],
        step=make_step(run, model, optimizer, loss_of),
        evaluate=evaluate if len(data.test) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.validation):,} held out, {len(data.test):,} to test",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("efficientnet", train)
