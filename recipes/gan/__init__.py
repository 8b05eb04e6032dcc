"""The GAN recipe: handwritten digits by two networks against each other. No framework is imported here.

Networks, optimizers and labels are those of ALCF's profiling workshop (argonne-lcf/CompPerfWorkshop,
10_reduced-precision/TensorFlow/train_GAN_optimized.py); its "bad layer sizes" are train.channels=[63,63,31,7] and
batch=4090. The first tenth of its labels is exact: its code speaks of inverting them, and takes the softening back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amp_launcher.recipe import MNIST_FILES, DataLayout, Layer, Recipe, conv, linear
from amp_launcher.typed import SettingsError, above_zero, least, setting, show

NOISE = 100
"""Random numbers from -1 to 1 that an image is made from."""
SEED_SIDE = 7
"""The generator begins with images of this side, and doubles it twice."""
DISCRIMINATOR = (24, 64, 128)
"""Channels of the discriminator's convolutions, each followed by pooling that halves the side: 28, 14, 7, 3."""
KERNEL = 5
DROPOUT = 0.4
NORM_EPSILON, NORM_MOMENTUM = 1e-3, 0.99
"""Keras's batch normalization; the momentum is the share of the old mean that stays."""
EPSILON, RMSPROP_DECAY = 1e-7, 0.9
"""Keras's optimizers. At o3 in float16 the squares of most gradients here are zero, and so small an epsilon lets the
losses drift away from those of float32 within a few steps; bfloat16 holds the squares."""


def _four(key: str, channels: tuple[int, ...]) -> None:
    if len(channels) != 4:
        raise SettingsError(f"{key}={show(channels)} must be four numbers, as [64,64,32,8]", key)
    least(1)(key, channels)


def _up_to(most: float) -> Callable[[str, float], None]:
    def check_share(key: str, value: float) -> None:
        if not 0 <= value <= most:
            raise SettingsError(f"{key}={show(value)} must be from 0 to {most}", key)

    return check_share


@dataclass(frozen=True, kw_only=True, slots=True)
class GanSettings:
    """Hyper-parameters of the GAN recipe."""

    channels: tuple[int, ...] = setting(
        (64, 64, 32, 8), "of the generator's dense layer and its convolutions; [63,63,31,7] defeats tensor cores", _four
    )
    generator_lr: float = setting(1e-3, "Adam's learning rate, for the generator", above_zero)
    discriminator_lr: float = setting(1e-4, "RMSprop's learning rate, for the discriminator", above_zero)
    soften: float = setting(0.01, "how far labels stay from 0 and 1", _up_to(0.5))
    sharp: float = setting(0.1, "share of a batch whose labels stay 0 and 1", _up_to(1))


def layers(settings: GanSettings) -> tuple[Layer, ...]:
    first, *convolutions = settings.channels
    network = [linear(name="generator.dense", inputs=NOISE, outputs=SEED_SIDE**2 * first)]
    inputs = first
    sides = zip((*convolutions, 1), (SEED_SIDE, 2 * SEED_SIDE, 4 * SEED_SIDE, 4 * SEED_SIDE), strict=True)
    for number, (outputs, side) in enumerate(sides, start=1):
        name = f"generator.conv{number}"
        network.append(conv(name=name, inputs=inputs, outputs=outputs, kernel=KERNEL, pixels=side**2))
        inputs = outputs
    for number, outputs in enumerate(DISCRIMINATOR, start=1):
        name, side = f"discriminator.conv{number}", 4 * SEED_SIDE // 2 ** (number - 1)
        network.append(conv(name=name, inputs=inputs, outputs=outputs, kernel=KERNEL, pixels=side**2))
        inputs = outputs
    return (*network, linear(name="discriminator.dense", inputs=3 * 3 * inputs, outputs=1))


RECIPE = Recipe(
    name="gan",
    settings=GanSettings,
    batch=4096,
    epochs=4,
    frameworks=("torch", "tensorflow"),
    epsilons={"Adam": EPSILON, "RMSprop": EPSILON},
    max_pools=True,
    data={
        "mnist": DataLayout(files=(MNIST_FILES,), gzip=True, download=True, help="the IDX files of MNIST in data.dir"),
        "digits": DataLayout(
            samples=1536, batch=256, epochs=100, help="scikit-learn's 1,797 digits, of which 1,536 are trained on"
        ),
        "synthetic": DataLayout(samples=60_000, help="random images of MNIST's shape"),
    },
    unsharded="its discriminator takes gradients in one of a step's two backwards and none in the other, which torch's "
    "fully_shard doesn't follow",
    layers=layers,
)
