"""What the launcher and the trainers need to know of a recipe without importing a framework."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from amp_launcher import recipes
from amp_launcher.typed import SettingsError, least, nearest, show

NAMES = ("mnist", "resnet50", "efficientnet", "gan", "simplenet", "gpt", "script")

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLayout:
    """One data set that a recipe can train on."""

    files: tuple[tuple[str, ...], ...] = ()
    """Sets of names, one of which must lie whole in data.dir, `*` standing for anything; none means that no folder is
    needed."""
    gzip: bool = False
    """Whether each of them may also lie there with `.gz`."""
    download: bool = False
    """Whether data.download=true can fetch them."""
    source: str = ""
    """Where people get them, if it can't."""
    samples: int | None = None
    """How many are trained on, where that doesn't depend on files."""
    batch: int | None = None
    """Samples per step where nothing else is said; none is the recipe's own number."""
    epochs: int | None = None
    """Passes over this data set where nothing else is said; none is the recipe's own number."""
    help: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The matrix or convolution sizes of one layer, for advice on tensor cores and memory."""

    name: str
    """The path of its module in torch's network."""
    kind: Literal["linear", "conv"]
    inputs: int
    """Features, or channels."""
    outputs: int
    kernel: int = 1
    groups: int = 1
    pixels: int = 1
    """Of what a convolution puts out, for each sample and channel; of a linear layer the tokens of a sample."""
    copies: int = 1
    """Tensors of the size of its output that the backward pass needs, at least: two where a norm follows, which needs
    what goes into it, and the next layer what comes out of it; none where it is computed again."""

    @property
    def weights(self) -> int:
        """How many numbers its weight has, without the bias."""
        return self.inputs // self.groups * self.outputs * self.kernel**2

    @property
    def kept(self) -> int:
        """How many numbers are kept of a sample for the backward pass, at least."""
        return self.outputs * self.pixels * self.copies


conv = functools.partial(Layer, kind="conv")
linear = functools.partial(Layer, kind="linear")


def halved(side: int) -> int:
    """The side of an image behind a layer of stride 2 that pads: no pixel is left out."""
    return -(-side // 2)


def stages_up_to(most: int) -> Callable[[str, tuple[int, ...]], None]:
    """The check of a setting with the number of blocks in each stage, of at most so many stages."""

    def check_stages(key: str, stages: tuple[int, ...]) -> None:
        if not 1 <= len(stages) <= most:
            raise SettingsError(f"{key}={show(stages)} must be 1 to {most} numbers, one for a stage", key)
        least(1)(key, stages)

    return check_stages


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A training job: its settings, its defaults, its data and where its trainers are."""

    name: str
    settings: type
    batch: int
    epochs: int
    frameworks: tuple[str, ...]
    """Those that it has a trainer in: `train_torch.py` beside the recipe."""
    data: dict[str, DataLayout] = field(default_factory=dict)
    """The first is the default."""
    layers: Callable[[Any], tuple[Layer, ...]] = lambda settings: ()
    """The network's matrix products and convolutions for the recipe's own settings, in the order they run in."""
    check: Callable[[Any], None] = lambda settings: None
    """Raises `SettingsError` for settings that this recipe alone refuses."""
    check_files: Callable[[Any, Mapping[str, int | None]], None] | None = None
    """Raises `SettingsError` for settings with files of data.dir that can't be trained on, from the files' paths and
    their sizes in bytes, None for one that can't be read. Only for files with names of their own, without `*`."""
    epsilons: Mapping[str, float] = field(default_factory=dict)
    """By name, its optimizers that divide by the root of squared gradients: what each adds to that root."""
    max_pools: bool = False
    """Whether its network takes maxima of neighbouring values, whose gradient XLA has no deterministic program for."""
    unsharded: str = ""
    """Why its network can't be sharded over ranks (parallel=fsdp); empty where it can."""
    takes: tuple[str, ...] | None = None
    """The settings that its trainers read, besides `train`; None is all of them."""

    def trainer(self, framework: str, observed: bool = True) -> str:
        """The module to run with `python -m`; `observed` is whether a script is."""
        if self.name != "script":
            return f"amp_launcher.recipes.{self.name}.train_{framework}"
        plain = framework == "none" or not observed
        return "amp_launcher.around.unobserved" if plain else f"amp_launcher.{framework}.script"


def add_folder(folder: Path) -> None:
    """Make the recipes in a folder of a person's own known, which is shaped like ours."""
    if str(folder) not in recipes.__path__:
        recipes.__path__.append(str(folder))


def find(name: str) -> Recipe:
    """The recipe of that name: one of ours, or of a person's own, which lies in an added folder or, in a job's code,
    beside ours. Raises `SettingsError` for an unknown one, and for one of a person's own that can't be imported."""
    if name in NAMES:
        place = "around" if name == "script" else "recipes"
        recipe: Recipe = importlib.import_module(f"amp_launcher.{place}.{name}").RECIPE
        return recipe
    if not _is_own(name):
        for folder in recipes.__path__[1:]:
            if name.isidentifier() and Path(folder, f"{name}.py").is_file():
                raise SettingsError(f"recipe={name}: {_moved(folder, name)}")
        raise SettingsError(f"recipe={name} is not one of {', '.join(NAMES)}{nearest(name, NAMES)}")
    try:
        own = importlib.import_module(f"amp_launcher.recipes.{name}").RECIPE
    except Exception as error:  # whatever a person's own code raises
        raise SettingsError(f"recipe={name} can't be imported: {type(error).__name__}: {error}") from error
    if not isinstance(own, Recipe) or own.name != name:
        raise SettingsError(f'recipe={name}: its RECIPE should be a Recipe(name="{name}", ...)')
    return own


def _moved(folder: str, name: str) -> str:
    """What to do with a recipe that lies as recipes did before each had a folder."""
    return (
        f"a recipe is a folder now: move {folder}/{name}.py to {name}/__init__.py there, torch_/{name}.py to "
        f"{name}/train_torch.py, import amp_launcher where it imports recipes, and name its frameworks "
        '(frameworks=("torch",)) instead of trainers'
    )


def own_names() -> list[str]:
    """The names of a person's own recipes, in alphabetical order."""
    names = {file.parent.name for folder in recipes.__path__ for file in Path(folder).glob("*/__init__.py")}
    return sorted(name for name in names.difference(NAMES) if _is_own(name))


def _is_own(name: str) -> bool:
    files = [Path(folder, name, "__init__.py") for folder in recipes.__path__] if name.isidentifier() else []
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())
    return any(re.search(r"^RECIPE\b.*=", text, re.MULTILINE) for text in texts)
