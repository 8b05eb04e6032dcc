"""The simplenet recipe: nine wide linear layers and nothing else, for the speed of matrix products.

It is the example of Paddle's page on automatic mixed precision: linear layers without activations between them, mean
squared error against random labels, plain SGD, two epochs of ten steps. No framework is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from amp_launcher.paddle_apis import check_api
from amp_launcher.precision import operations
from amp_launcher.recipe import DataLayout, Layer, Recipe
from amp_launcher.typed import SettingsError, above_zero, least, setting

STEPS_PER_EPOCH = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class SimplenetSettings:
    """Hyper-parameters of the simplenet recipe."""

    width: int = setting(8192, "inputs and outputs of every layer", least(1))
    layers: int = setting(9, "how many linear layers", least(1))
    lr: float = setting(1e-4, "SGD's learning rate", above_zero)
    api: Literal["loop", "model", "static"] = setting(
        "loop", "framework=paddle: a loop of its own, paddle.Model, or a static graph"
    )
    fp16_guard: bool = setting(
        False, "train.api=static: half precision in paddle's fp16_guard alone, which is all but the first"
    )


def check_request(settings: Any) -> None:
    """Refuse Paddle's ways of training elsewhere, and what they can't do. Raises `SettingsError`."""
    train: SimplenetSettings = settings.train
    check_api(settings)
    if train.api == "static" and "linear" in operations.canonical((*settings.amp.allow, *settings.amp.deny), "amp"):
        raise SettingsError("train.api=static: a static graph of Paddle's has matmul, and no linear", "amp")
    if train.fp16_guard and not (train.api == "static" and settings.amp.level in ("o2", "o3")):
        raise SettingsError("train.fp16_guard=true belongs to train.api=static with amp=o2 or o3")


RECIPE = Recipe(
    name="simplenet",
    settings=SimplenetSettings,
    batch=2048,
    epochs=2,
    frameworks=("torch", "tensorflow", "paddle"),
    check=check_request,
    data={"synthetic": DataLayout(help="ten batches of random numbers")},
    layers=lambda settings: tuple(
        Layer(name=f"linears.{index}", kind="linear", inputs=settings.width, outputs=settings.width)
        for index in range(settings.layers)
    ),
)
