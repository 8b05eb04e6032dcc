"""The simplenet recipe: nine wide linear layers and nothing else, for the speed of matrix products.

It is the example of Paddle's page on automatic mixed precision: linear layers without activations between them, mean
squared error against random labels, plain SGD, two epochs of ten steps. No framework is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipes.recipe import DataLayout, Layer, Recipe
from recipes.typed import above_zero, at_least, setting

STEPS_PER_EPOCH = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class SimplenetSettings:
    """Hyper-parameters of the simplenet recipe."""

    width: int = setting(8192, "inputs and outputs of every layer")
    layers: int = setting(9, "how many linear layers")
    lr: float = setting(1e-4, "SGD's learning rate")

    def __post_init__(self) -> None:
        at_least("train.width", self.width, 1)
        at_least("train.layers", self.layers, 1)
        above_zero("train.lr", self.lr)


RECIPE = Recipe(
    name="simplenet",
    settings=SimplenetSettings,
    batch=2048,
    epochs=2,
    trainers={
        "torch": "recipes.torch_.simplenet",
        "tensorflow": "recipes.tensorflow_.simplenet",
        "paddle": "recipes.paddle_.simplenet",
    },
    data={"synthetic": DataLayout(help="ten batches of random numbers")},
    layers=lambda settings: tuple(
        Layer(name=f"linears.{index}", kind="linear", inputs=settings.width, outputs=settings.width)
        for index in range(settings.layers)
    ),
)
