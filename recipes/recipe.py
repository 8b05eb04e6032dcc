"""What the launcher and the trainers need to know of a recipe without importing a framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from recipes.typed import SettingsError, nearest

NAMES = ("mnist",)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLayout:
    """One data set that a recipe can train on."""

    files: tuple[str, ...] = ()
    """Names that must lie in data.dir, either as they are or with `.gz`; none means that no folder is needed."""
    epochs: int | None = None
    """Passes over this data set where nothing else is said; none is the recipe's own number."""
    help: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The matrix or convolution sizes of one layer, for advice on dimensions that defeat tensor cores."""

    name: str
    kind: str
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A training job: its settings, its defaults, its data and where its trainers are."""

    name: str
    settings: type
    batch: int
    epochs: int
    trainers: dict[str, str]
    """framework -> module to run with `python -m`."""
    data: dict[str, DataLayout] = field(default_factory=dict)
    """The first is the default."""
    layers: tuple[Layer, ...] = ()


def find(name: str) -> Recipe:
    """The recipe of that name. Raises `SettingsError` for an unknown one."""
    if name not in NAMES:
        raise SettingsError(f"recipe={name} is not one of {', '.join(NAMES)}{nearest(name, NAMES)}", "recipe")
    recipe: Recipe = importlib.import_module(f"recipes.{name}").RECIPE
    return recipe
