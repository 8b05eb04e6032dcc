"""The EfficientNet-B0 recipe on CIFAR-100: its hyper-parameters and its blocks. No framework is imported here.

Network, optimizer and schedule are those of a published Keras notebook on mixed precision, which differs from the
paper: ReLU6 throughout, squeezing by 24 where that divides the channels and else by 4, and biases in the convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_launcher.recipe import DataLayout, Layer, Recipe, conv, halved, linear, stages_up_to
from amp_launcher.typed import above_zero, least, setting

CLASSES = 100
STEM, HEAD = 32, 1280
"""Channels of the first and the last convolution."""
STAGES = (
    # channels, kernel, stride of the first block, expansion
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


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficientnetSettings:
    """Hyper-parameters of the EfficientNet recipe."""

    image_size: int = setting(224, "height and width that the 32x32 images are resized to", least(32))
    stages: tuple[int, ...] = setting(
        (1, 2, 2, 3, 3, 4, 1), "blocks in each stage; fewer are a smaller network", stages_up_to(len(STAGES))
    )
    lr: float = setting(1e-3, "Adam's learning rate", above_zero)


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
        return self.expanded // (4 if self.expanded % 24 else 24)

    @property
    def adds(self) -> bool:
        """Whether what came in is added to what goes out."""
        return self.stride == 1 and self.inputs == self.outputs


def blocks(stages: Sequence[int]) -> Iterator[Block]:
    """So many blocks in each of the stages."""
    inputs, number = STEM, 0
    for count, (outputs, kernel, stride, expansion) in zip(stages, STAGES, strict=False):
        for repeat in range(count):
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
    side = halved(settings.image_size)
    network = [conv(name="stem", inputs=3, outputs=STEM, kernel=3, pixels=side**2, copies=2)]
    chain = list(blocks(settings.stages))
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
        conv(name="head", inputs=chain[-1].outputs, outputs=HEAD, pixels=side**2, copies=2),
        linear(name="classifier", inputs=HEAD, outputs=CLASSES),
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
