"""A recipe is the same job in every framework: from torch's initial weights it has torch's losses."""

from __future__ import annotations

import importlib

import pytest

from recipes.recipe import find
from tests.recipes.contract.frameworks import torch
from tests.recipes.contract.weights import give_keras, give_paddle
from tests.recipes.data.idx_files import write_mnist
from tests.recipes.torch_.trainers import steps

JOBS = {
    "mnist": ("data=mnist", "batch=8", "train.lr=0.1", "train.dropout_conv=0", "train.dropout_dense=0", "steps=10"),
    "simplenet": ("train.width=32", "batch=16", "train.lr=0.1", "steps=20"),
    # Label smoothing, weight decay and momentum, while the rate goes up and comes down.
    "resnet50": (
        *("train.width=8", "train.stages=[1,1]", "train.image_size=32", "train.classes=10", "batch=8", "steps=10"),
        *("train.lr=1.6", "train.weight_decay=0.02", "train.label_smoothing=0.2"),
    ),
}
MICRO_BATCHES = {"mnist": ("accumulate=4", "train.clip=0.5"), "simplenet": ("accumulate=4",)}
BOUNDS = {"mnist": 1e-4, "simplenet": 1e-5, "resnet50": 1e-3}
"""Relative, for sums in another order in float32."""
CASES = [
    (framework, recipe, more)
    for framework in ("tensorflow", "paddle")
    for recipe in JOBS
    for more in ((), MICRO_BATCHES.get(recipe))
    if more is not None and framework in find(recipe).trainers
]
in_torch: dict = {}
"""Losses and initial weights, by job."""


def losses(framework, recipe, folder, words):
    module = importlib.import_module(f"recipes.{framework}_.{recipe}")
    loop = importlib.import_module(f"recipes.{framework}_.loop")
    job = ["amp=o0", "device=cpu", "checkpoint.every=0", *words, f"run={folder}"]
    assert loop.main(recipe, module.train, job) == loop.DONE
    return [row["loss"] for row in steps(folder)]


@pytest.fixture(scope="module")
def from_torch(tmp_path_factory):
    """Losses and initial weights of a job in torch."""

    def found(recipe, words):
        if (recipe, words) not in in_torch:
            module, begun = importlib.import_module(f"recipes.torch_.{recipe}"), {}

            class Net(module.Net):
                def __init__(self, settings):
                    super().__init__(settings)
                    begun.update({name: each.detach().numpy().copy() for name, each in self.named_parameters()})

            threads = torch.get_num_threads()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "Net", Net)
                in_torch[recipe, words] = losses("torch", recipe, tmp_path_factory.mktemp("torch"), words), begun
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(False)
        return in_torch[recipe, words]

    return found


@pytest.mark.parametrize(
    ("framework", "recipe", "more"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "whole",
)
def test_from_equal_weights_a_recipe_has_torchs_losses(
    tmp_path, tmp_path_factory, monkeypatch, from_torch, framework, recipe, more
):
    words = (*JOBS[recipe], *more)
    if recipe == "mnist":
        words = (*words, f"data.dir={write_mnist(tmp_path_factory.getbasetemp() / 'mnist')}")
    theirs, begun = from_torch(recipe, words)
    module = importlib.import_module(f"recipes.{framework}_.{recipe}")
    name, give = {"tensorflow": ("network", give_keras), "paddle": ("Net", give_paddle)}[framework]
    make = getattr(module, name)
    monkeypatch.setattr(module, name, lambda settings: give(make(settings), begun))
    ours = losses(framework, recipe, tmp_path / "ours", words)
    bound = BOUNDS[recipe]
    assert max(theirs) - min(theirs) > 10 * bound * max(theirs)
    assert ours == pytest.approx(theirs, rel=bound)
