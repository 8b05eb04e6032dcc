"""The EfficientNet recipe on CIFAR-100: its hyper-parameters and its blocks. No framework is imported here.

Network, optimizer and schedule are those of a published Keras notebook on mixed precision, which differs from the
paper: ReLU6 throughout, biases in the convolutions, an expansion of the first blocks by 1, and no dropout. B1 to B7 are
scaled as the paper's authors do; the notebook takes width for depth there, and scales neither stem nor head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from amp_launcher.recipe import DataLayout, Layer, Recipe, conv, halved, linear, stages_up_to
from amp_launcher.typed import above_zero, least, setting

CLASSES = 100
STEM, HEAD = 32, 1280
"""Channels of B0's first and last convolution."""
STAGES = (
    # B0's channels, kernel, stride of the first block, expansion
    (16, 3, 1, 1),
    (24, 3, 2, 6),
    (40, 5, 2, 6),
    (80, 3, 2, 6),
    (112, 5, 1, 6),
    (192, 5, 2, 6),
    (320, 3, 1, 6),
)
NORM_EPSILON, NORM_MOMENTUM = 1e-3, 0.99
"""Keras's batch normalization; the momentum is the share of the old mean that stays."""
ADAM_EPSILON = 1e-7
"""Keras's."""


class Scale(NamedTuple):
    """By how much a network is larger than B0."""

    width: float
    """Times its channels."""
    depth: float
    """Times its blocks."""
    side: int
    """Height and width of its images."""


Variant = Literal["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"]
# Source: Tan and Le, EfficientNet (arXiv 1905.11946), rounded as in their own code (tensorflow/tpu).
SCALES: dict[Variant, Scale] = {
    "b0": Scale(1.0, 1.0, 224),
    "b1": Scale(1.0, 1.1, 240),
    "b2": Scale(1.1, 1.2, 260),
    "b3": Scale(1.2, 1.4, 300),
    "b4": Scale(1.4, 1.8, 380),
    "b5": Scale(1.6, 2.2, 456),
    "b6": Scale(1.8, 2.6, 528),
    "b7": Scale(2.0, 3.1, 600),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficientnetSettings:
    """Hyper-parameters of the EfficientNet recipe."""

    variant: Variant = setting("b0", "EfficientNet-B0 to B7, which scale width, depth and images together")
    image_size: int | None = setting(
        None, "height and width that the 32x32 images are resized to; null is the variant's, 224 to 600", least(32)
    )
    stages: tuple[int, ...] = setting(
        (1, 2, 2, 3, 3, 4, 1),
        "blocks in each stage, before the variant's depth multiplies them; fewer are a smaller network",
        stages_up_to(len(STAGES)),
    )
    lr: float = setting(1e-3, "Adam's learning rate", above_zero)

    @property
    def side(self) -> int:
        """Height and width of the images, in pixels."""
        return self.image_size or SCALES[self.variant].side

    def channels(self, of_b0: int) -> int:
        """So many channels of B0 in this variant: the nearest multiple of 8 that is not below nine tenths."""
        wanted = of_b0 * SCALES[self.variant].width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded if rounded >= 0.9 * wanted else rounded + 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """An inverted residual: 1x1 to more channels, depthwise convolution, squeeze and excite, 1x1 to the outputs."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    expansion: int

    @property
    def expanded(self) -> int:
        return self.inputs * self.expansion

    @property
    def squeezed(self) -> int:
        return self.inputs // 4

    @property
    def adds(self) -> bool:
        """Whether what came in is added to what goes out."""
        return self.stride == 1 and self.inputs == self.outputs


def blocks(settings: EfficientnetSettings) -> Iterator[Block]:
    """The blocks of its variant and stages, in their order."""
    inputs, number = settings.channels(STEM), 0
    for count, (channels, kernel, stride, expansion) in zip(settings.stages, STAGES, strict=False):
        outputs = settings.channels(channels)
        for repeat in range(math.ceil(count * SCALES[settings.variant].depth)):
            yield Block(
                name=f"blocks.{number}",
                inputs=inputs,
                outputs=outputs,
                kernel=kernel,
                stride=stride if repeat == 0 else 1,
                expansion=expansion,
            )
            inputs, number = outputs, number + 1


def layers(settings: EfficientnetSettings) -> tuple[Layer, ...]:
    side = halved(settings.side)
    network = [conv(name="stem", inputs=3, outputs=settings.channels(STEM), kernel=3, pixels=side**2, copies=2)]
    chain = list(blocks(settings))
    for block in chain:
        name, wide, before = block.name, block.expanded, side**2
        side = halved(side) if block.stride == 2 else side
        network += [
            conv(name=f"{name}.expand", inputs=block.inputs, outputs=wide, pixels=before, copies=2),
            conv(  # the third copy is scaled by the channel's share
                name=f"{name}.depthwise",
                inputs=wide,
                outputs=wide,
                kernel=block.kernel,
                groups=wide,
                pixels=side**2,
                copies=3,
            ),
            conv(name=f"{name}.squeeze", inputs=wide, outputs=block.squeezed),
            conv(name=f"{name}.excite", inputs=block.squeezed, outputs=wide),
            conv(name=f"{name}.project", inputs=wide, outputs=block.outputs, pixels=side**2, copies=2),
        ]
    return (
        *network,
        conv(name="head", inputs=chain[-1].outputs, outputs=settings.channels(HEAD), pixels=side**2, copies=2),
        linear(name="classifier", inputs=settings.channels(HEAD), outputs=CLASSES),
    )


RECIPE = Recipe(
    name="efficientnet",
    settings=EfficientnetSettings,
    batch=128,
    epochs=20,
    frameworks=("torch", "tensorflow"),
    data={
        "cifar100": DataLayout(
            files=(("train.bin", "test.bin"), ("cifar-100-binary",)),
            download=True,
            help="the binary files of CIFAR-100 in data.dir",
        ),
        "synthetic": DataLayout(samples=40_000, help="random images of CIFAR-100's shape"),
    },
    unsharded="its convolutions have channels_last weights, and torch's fully_shard takes contiguous ones only",
    layers=layers,
    epsilons={"Adam": ADAM_EPSILON},
)
