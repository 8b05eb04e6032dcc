"""A recipe is the same job in every framework: its layers, and from torch's initial weights torch's losses."""

from __future__ import annotations

import numpy
import pytest

from amp_launcher.recipe import NAMES, find
from amp_launcher.recipes.data import cifar
from amp_launcher.recipes.gan import GanSettings
from amp_launcher.recipes.simplenet import SimplenetSettings
from tests.amp_launcher.contract.frameworks import torch
from tests.amp_launcher.contract.runs import losses, module, networks, train
from tests.amp_launcher.contract.weights import give_keras, give_paddle
from tests.amp_launcher.torch.trainers import result, steps
from tests.onednn import HAS_BFLOAT16
from tests.recipes.data.idx_files import write_mnist

NO_DROPOUT = ("train.dropout_conv=0", "train.dropout_dense=0")
SMALL_RESNET = ("train.width=8", "train.stages=[1,1]", "train.image_size=32", "train.classes=10", "batch=8")
BOUNDS = {"mnist": 1e-4, "simplenet": 1e-5, "resnet50": 1e-3, "efficientnet": 1e-3}
"""Relative, for sums in another order in float32."""
FLOAT32 = {
    "mnist": ("data=mnist", "batch=8", "train.lr=0.1", *NO_DROPOUT, "steps=10"),
    "simplenet": ("train.width=32", "batch=16", "train.lr=0.1", "steps=20"),
    # Label smoothing, weight decay and momentum, while the rate goes up and comes down.
    "resnet50": (*SMALL_RESNET, "steps=10", "train.lr=1.6", "train.weight_decay=0.02", "train.label_smoothing=0.2"),
}
MICRO_BATCHES = {"mnist": (("accumulate=4", "train.clip=0.5"),), "simplenet": ((), ("accumulate=4",))}
HALF = {
    "mnist": ("data=mnist", "batch=4", "train.lr=0.1", *NO_DROPOUT, "steps=2"),
    "simplenet": ("train.width=64", "batch=32", "steps=6"),
    "resnet50": (*SMALL_RESNET, "steps=4"),
    "efficientnet": (
        *("data=synthetic", "train.stages=[1,1]", "train.image_size=32", "batch=4", "train.lr=1e-4", "steps=2"),
    ),
    "gan": ("data=mnist", "batch=4", "train.channels=[8,8,4,4]", "steps=4"),
}
"""Few steps: tracing a graph takes longer, and a CPU takes long in float16."""
FLOAT16 = ("amp.dtype=float16", "loss_scale=dynamic", "loss_scale.init=64")
STATIC = ("amp=o2", "amp.dtype=float16", "loss_scale=static")
O1, O2, O3 = (("amp=o1",), ("amp=o2",), ("amp=o3",))
LEVELS = {
    "torch": {
        "mnist": (O1, ("amp=o1", *FLOAT16)),
        "simplenet": (O2, O3),
        "resnet50": (O2,),
        "efficientnet": (O3,),
        "gan": (O1, ("amp=o2", *FLOAT16)),
    },
    "tensorflow": {
        "mnist": (O1, ("amp=o2", *FLOAT16)),
        "simplenet": (O1, STATIC, ("amp=o3", "amp.dtype=float16")),
        "resnet50": (O3,),
        "efficientnet": (O2,),
        "gan": (O2,),
    },
}
"""Each recipe and each level in each framework; of networks with convolutions TensorFlow traces o1 longest."""
HALF_BOUNDS = {
    "mnist": 0.002,
    "simplenet": 0.01 if HAS_BFLOAT16 else 0.02,
    "resnet50": 0.01,
    "efficientnet": 0.01,
    "gan": 0.02,
}
"""Relative, in bfloat16; half of it in float16, which has three bits more. Without AVX-512 TensorFlow cuts digits off,
so that each product is 0.3 % too small, and a loss of three layers 1.5 %."""
RECIPES = [name for name in NAMES if name != "script"]
in_float32: dict = {}
"""Losses and initial weights of torch, by job."""
own_float32: dict = {}
"""Losses by framework and recipe, from those weights."""


@pytest.fixture(scope="module", autouse=True)
def images(tmp_path_factory):
    """Each with 32 images."""
    folder = f"data.dir={write_mnist(tmp_path_factory.mktemp('mnist'), 32, 8)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar, "SYNTHETIC", 16)  # TensorFlow has all of them in the graph
        for jobs in (FLOAT32, HALF):
            for recipe, words in jobs.items():
                if "data=mnist" in words:
                    patch.setitem(jobs, recipe, (*words, folder))
        yield


@pytest.fixture(autouse=True)
def torch_as_it_was():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def from_torch(tmp_path_factory):
    """Losses and initial weights of a job in torch in float32."""

    def run(recipe, words):
        if (recipe, words) not in in_float32:
            recipes, begun = module("torch", recipe), {}

            class Net(recipes.Net):
                def __init__(self, settings):
                    super().__init__(settings)
                    begun.update({name: value.detach().numpy().copy() for name, value in self.named_parameters()})

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(recipes, "Net", Net)
                folder = tmp_path_factory.mktemp("torch")
                words_and_level = ("amp=o0", "checkpoint.every=0", *words)
                in_float32[recipe, words] = losses(train("torch", recipe, folder, *words_and_level)), begun
        return in_float32[recipe, words]

    return run


def begin_with(monkeypatch, framework, recipe, weights):
    """Let a recipe begin with these weights of torch's."""
    recipes = module(framework, recipe)
    name, give = {"tensorflow": ("network", give_keras), "paddle": ("Net", give_paddle)}[framework]
    make = getattr(recipes, name)
    monkeypatch.setattr(recipes, name, lambda settings: give(make(settings), weights))


@pytest.mark.parametrize(
    ("framework", "recipe", "more"),
    [
        (framework, recipe, more)
        for framework in ("tensorflow", "paddle")
        for recipe in FLOAT32
        if framework in find(recipe).frameworks
        for more in MICRO_BATCHES.get(recipe, ((),))
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "whole",
)
def test_from_equal_weights_a_recipe_has_torchs_losses(tmp_path, monkeypatch, from_torch, framework, recipe, more):
    words = (*FLOAT32[recipe], *more)
    theirs, begun = from_torch(recipe, words)
    begin_with(monkeypatch, framework, recipe, begun)
    ours = losses(train(framework, recipe, tmp_path, "amp=o0", "checkpoint.every=0", *words))
    bound = BOUNDS[recipe]
    assert max(theirs) - min(theirs) > 10 * bound * max(theirs)
    assert ours == pytest.approx(theirs, rel=bound)
    assert result(tmp_path)["observed"]["verdict"] == "proved"


@pytest.mark.slow
@pytest.mark.usefixtures("small_discriminator")
@pytest.mark.parametrize(
    ("framework", "recipe", "mode"),
    [
        (framework, recipe, mode)
        for framework, recipes in LEVELS.items()
        for recipe, modes in recipes.items()
        for mode in modes
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value[:3]),
)
def test_every_level_is_proved_and_its_losses_are_those_of_float32_within_a_bound(
    tmp_path, monkeypatch, from_torch, framework, recipe, mode
):
    words = ("checkpoint.every=0", *HALF[recipe])
    if recipe == "gan":  # its noise is another one in each framework
        if framework == "tensorflow":
            monkeypatch.setattr(module(framework, recipe), "DROPOUT", 0.0)  # Keras draws it in the layer's dtype
    else:
        reference, begun = from_torch(recipe, HALF[recipe])
        if framework != "torch":
            begin_with(monkeypatch, framework, recipe, begun)
    if (framework, recipe) not in own_float32:
        folder = train(framework, recipe, tmp_path / "float32", "amp=o0", *words)
        assert result(folder)["observed"]["verdict"] == "proved"
        own_float32[framework, recipe] = losses(folder)
    plain = own_float32[framework, recipe]
    if recipe == "gan":
        reference = plain
    else:
        assert plain == pytest.approx(reference, rel=BOUNDS[recipe])
    folder = train(framework, recipe, tmp_path / "half", *words, *mode)
    record, dtype = result(folder), "float16" if len(mode) > 1 else "bfloat16"
    bound = HALF_BOUNDS[recipe] / (2 if dtype == "float16" else 1)
    assert losses(folder) == pytest.approx(reference, rel=bound)
    assert losses(folder) != plain
    observed = record["observed"]
    assert (observed["verdict"], observed["dtype"], observed["half_flop_share"]) == ("proved", dtype, 1.0)
    assert record["loss_scale"]["skipped_steps"] == 0


@pytest.mark.usefixtures("small_discriminator")
@pytest.mark.parametrize("per_optimizer", ["false", "true"])
def test_the_gan_has_two_losses_and_loss_scales_that_move_once_a_step(tmp_path, per_optimizer):
    """TensorFlow's, whose graphs take long to trace, is a case of a stopped run in test_runs.py."""
    scale = ("loss_scale=dynamic", "loss_scale.init=64", "loss_scale.growth_every=2")
    words = (*HALF["gan"], "amp=o2", "amp.dtype=float16", *scale, f"loss_scale.per_optimizer={per_optimizer}")
    folder = train("torch", "gan", tmp_path / "whole", *words)
    assert result(folder)["observed"]["verdict"] == "proved"
    assert [row["loss_scale"] for row in steps(folder)] == [64, 64, 128, 128]
    for row in steps(folder):
        assert sorted(row["losses"]) == ["discriminator", "generator"]
        assert row["loss"] == pytest.approx(sum(row["losses"].values()))


def test_labels_of_the_gan_are_the_same():
    settings = GanSettings(soften=0.1, sharp=0.2)
    expected = module("torch", "gan").labels(10, settings, torch.device("cpu")).numpy()
    assert module("tensorflow", "gan").labels(10, settings) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("framework", "recipe"),
    [(name, recipe) for name in ("tensorflow", "paddle") for recipe in RECIPES if name in find(recipe).frameworks],
)
def test_the_launcher_knows_the_layers_of_a_network_and_whether_it_has_max_pooling(framework, recipe):
    known = find(recipe)
    settings = SimplenetSettings(width=8) if recipe == "simplenet" else known.settings()
    sizes, kinds = {}, set()
    for prefix, net in networks(framework, recipe, settings):
        named = net.named_sublayers() if framework == "paddle" else [(layer.name, layer) for layer in net.layers]
        for name, layer in named:
            kinds.add(type(layer).__name__)
            weight = getattr(layer, "kernel", getattr(layer, "weight", None))
            if weight is not None:
                sizes[prefix + name.replace("_", ".")] = int(numpy.prod(weight.shape))
    assert sizes == {layer.name: layer.weights for layer in known.layers(settings)}
    assert known.max_pools == bool(kinds & {"MaxPooling2D", "MaxPool2D"})
