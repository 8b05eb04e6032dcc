"""The MNIST recipe: a small convolutional network on handwritten digits. No framework is imported here.

The network and its optimizer are those of the Keras tutorial that TWCC's AMP page builds on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amp_launcher.paddle_apis import check_api
from amp_launcher.recipe import MNIST_FILES, DataLayout, Recipe, conv, linear
from amp_launcher.typed import above_zero, below_one, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class MnistSettings:
    """Hyper-parameters of the MNIST recipe."""

    lr: float = setting(1.0, "Adadelta's learning rate", above_zero)
    rho: float = setting(0.95, "Adadelta's decay", below_one)
    dropout_conv: float = setting(0.25, "dropout after the convolutions", below_one)
    dropout_dense: float = setting(0.5, "dropout before the last layer", below_one)
    clip: float | None = setting(None, "gradient norm to clip to, after unscaling", above_zero)
    api: Literal["loop", "model"] = setting("loop", "framework=paddle: a loop of its own, or paddle.Model")


RECIPE = Recipe(
    name="mnist",
    settings=MnistSettings,
    batch=128,
    epochs=12,
    frameworks=("torch", "tensorflow", "paddle"),
    check=check_api,
    max_pools=True,
    data={
        "digits": DataLayout(
            samples=1536, epochs=24, help="1,797 real 8x8 digits shipped inside scikit-learn; nothing to fetch"
        ),
        "mnist": DataLayout(
            files=(MNIST_FILES,),
            gzip=True,
            download=True,
            help="the IDX files of MNIST in data.dir",
        ),
        "synthetic": DataLayout(samples=60_000, help="random images of MNIST's shape"),
    },
    layers=lambda settings: (
        conv(name="conv1", inputs=1, outputs=32, kernel=3, pixels=26**2),
        conv(name="conv2", inputs=32, outputs=64, kernel=3, pixels=24**2),
        linear(name="dense1", inputs=9216, outputs=128),
        linear(name="dense2", inputs=128, outputs=10),
    ),
)
