"""The ResNet-50 v1.5 recipe: its hyper-parameters, its blocks and its learning rate. No framework is imported here.

v1.5 has the stride of a downsampling block in its 3x3 convolution, not in the 1x1 before it. Optimizer, schedule and
augmentation are those of NVIDIA's ResNet50 v1.5 (https://catalog.ngc.nvidia.com/orgs/nvidia/resources/resnet_tf1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_launcher.recipe import DataLayout, Layer, Recipe, conv, halved, linear, stages_up_to
from amp_launcher.typed import above_zero, below_one, least, setting

if TYPE_CHECKING:
    from amp_launcher.settings import Settings

STRIDES = (1, 2, 2, 2)
"""Of the first block of each stage."""
STEPS_PER_EPOCH = 500
"""Of synthetic data."""
EXPANSION = 4
"""A block puts out this many times the channels that it computes its 3x3 convolution with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resnet50Settings:
    """Hyper-parameters of the ResNet-50 recipe."""

    image_size: int = setting(224, "height and width of the images", least(32))
    width: int = setting(64, "channels of the first stage's 3x3 convolutions; 64 is ResNet-50", least(1))
    stages: tuple[int, ...] = setting(
        (3, 4, 6, 3), "bottleneck blocks in each stage; [3,4,23,3] is ResNet-101", stages_up_to(len(STRIDES))
    )
    classes: int = setting(1000, "kinds of images", least(2))
    lr: float = setting(0.256, "peak learning rate for a batch of 256; it grows with the batch", above_zero)
    momentum: float = setting(0.875, "SGD's momentum", least(0))
    weight_decay: float = setting(
        1 / 32768, "on the weights of convolutions and of the last layer; not on norms, biases", least(0)
    )
    warmup_epochs: float = setting(5.0, "epochs of linear warm-up, before the cosine", least(0))
    label_smoothing: float = setting(0.1, "share of the label spread over all classes", below_one)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A bottleneck: 1x1 to `width` channels, 3x3 with the stride, 1x1 to `outputs`; added to what came in.

    Where stride or channels change, what came in passes a strided 1x1 convolution first.
    """

    name: str
    inputs: int
    width: int
    stride: int

    @property
    def outputs(self) -> int:
        return self.width * EXPANSION

    @property
    def projects(self) -> bool:
        return self.stride != 1 or self.inputs != self.outputs


def blocks(width: int, stages: Sequence[int]) -> Iterator[Block]:
    """So many blocks in each of the stages, of which the first gets `width` channels."""
    inputs = width
    for stage, count in enumerate(stages):
        for index in range(count):
            stride = STRIDES[stage] if index == 0 else 1
            block = Block(name=f"stage{stage + 1}.{index}", inputs=inputs, width=width * 2**stage, stride=stride)
            yield block
            inputs = block.outputs


def layers(settings: Resnet50Settings) -> tuple[Layer, ...]:
    side = halved(settings.image_size)
    network = [conv(name="stem", inputs=3, outputs=settings.width, kernel=7, pixels=side**2, copies=2)]
    side = halved(side)  # by the pooling
    for block in blocks(settings.width, settings.stages):
        name, inputs, width, outputs, before = block.name, block.inputs, block.width, block.outputs, side**2
        side = halved(side) if block.stride == 2 else side
        network += [
            conv(name=f"{name}.reduce", inputs=inputs, outputs=width, pixels=before, copies=2),
            conv(name=f"{name}.conv", inputs=width, outputs=width, kernel=3, pixels=side**2, copies=2),
            conv(name=f"{name}.expand", inputs=width, outputs=outputs, pixels=side**2, copies=2),
        ]
        if block.projects:
            # What its norm puts out is added to that of the other path at once, and not needed again.
            network.append(conv(name=f"{name}.project", inputs=inputs, outputs=outputs, pixels=side**2))
    last = settings.width * 2 ** (len(settings.stages) - 1) * EXPANSION
    return (*network, linear(name="classifier", inputs=last, outputs=settings.classes))


def learning_rate(settings: Resnet50Settings, batch: int, step: int, steps_per_epoch: int, total: int) -> float:
    """The rate of optimizer step `step`, counted from 0, of `total`: linear up to the peak, then half a cosine to 0.

    A run of fewer epochs than the warm-up warms up for a fifth of its steps.
    """
    peak = settings.lr * batch / 256
    warmup = min(round(settings.warmup_epochs * steps_per_epoch), total // 5)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def schedule(settings: Settings, samples: int) -> Callable[[int], float]:
    """The learning rate of each optimizer step of a run over so many samples."""
    per_epoch = samples // settings.batch_size
    total = settings.steps or (settings.epochs or 1) * per_epoch
    return lambda step: learning_rate(settings.train, settings.batch_size, step, per_epoch, total)


IMAGENET_HOME = "https://image-net.org/download.php, which wants an account"

RECIPE = Recipe(
    name="resnet50",
    settings=Resnet50Settings,
    batch=256,
    epochs=90,
    frameworks=("torch", "tensorflow"),
    max_pools=True,
    data={
        "synthetic": DataLayout(
            epochs=1, help="one random batch again and again, 500 steps an epoch: how fast it is, nothing else"
        ),
        "imagenet": DataLayout(
            files=(("train", "val"),),
            source=IMAGENET_HOME,
            help="train/CLASS/*.JPEG and val/CLASS/*.JPEG in data.dir",
        ),
    },
    unsharded="its convolutions have channels_last weights, and torch's fully_shard takes contiguous ones only",
    layers=layers,
)
