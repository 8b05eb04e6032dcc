"""The recipes in torch beside MNIST: their networks, their numbers, their resuming, their ranks."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from amp_launcher import recipe as recipes
from amp_launcher.loop.divergence import Diverged
from amp_launcher.recipes.data import random_regression
from amp_launcher.recipes.efficientnet import EfficientnetSettings
from amp_launcher.recipes.efficientnet import train_torch as efficientnet
from amp_launcher.recipes.gan import GanSettings
from amp_launcher.recipes.gan import train_torch as gan
from amp_launcher.recipes.mnist import MnistSettings
from amp_launcher.recipes.mnist import train_torch as mnist
from amp_launcher.recipes.resnet50 import Resnet50Settings
from amp_launcher.recipes.resnet50 import train_torch as resnet50
from amp_launcher.recipes.simplenet import SimplenetSettings
from amp_launcher.recipes.simplenet import train_torch as simplenet
from amp_launcher.torch import loop
from tests.amp_launcher.torch.kept_bytes import kept_bytes
from tests.amp_launcher.torch.trainers import differences, last_state, result, rows, steps, succeed
from tests.recipes.data.cifar_files import write_binary
from tests.recipes.data.image_files import write_folders

SMALL = {
    "mnist": ("data=digits", "batch=16", "train.lr=0.1"),
    "simplenet": ("train.width=64", "batch=32"),
    "resnet50": ("train.width=8", "train.stages=[1,1]", "train.image_size=32", "train.classes=10", "batch=8"),
    "efficientnet": ("data=synthetic", "train.stages=[1,1]", "train.image_size=32", "batch=8", "train.lr=1e-4"),
    "gan": ("data=digits", "batch=8", "train.channels=[16,16,8,8]"),
}
DYNAMIC = ("loss_scale=dynamic", "loss_scale.init=64")
"""In bfloat16: a CPU takes long in float16, and the scale moves alike."""


def module(name: str) -> ModuleType:
    return importlib.import_module(f"amp_launcher.recipes.{name}.train_torch")


def small(name: str, *words: str) -> list[str]:
    """The words of a small job, of which these take the place of those with the same key."""
    by_key = {word.partition("=")[0]: word for word in (*SMALL[name], "checkpoint.every=0", *words)}
    return list(by_key.values())


def train(name: str, folder: Path, *words: str) -> Path:
    """Run a recipe in this process, where it has to succeed."""
    assert loop.main(name, module(name).train, small(name, *words, f"run={folder}")) == loop.DONE
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in steps(folder)]


class BothOfTheGan(nn.Module):
    """The generator, and the discriminator on what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = gan.Generator(GanSettings()), gan.Discriminator()

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.discriminator(self.generator(noise))


NETWORKS = pytest.mark.parametrize(
    ("name", "settings", "net", "inputs"),
    [
        ("mnist", MnistSettings(), mnist.Net, (1, 28, 28)),
        ("simplenet", SimplenetSettings(width=16, layers=3), simplenet.Net, (16,)),
        ("resnet50", Resnet50Settings(width=8, classes=10, image_size=75), resnet50.Net, (3, 75, 75)),
        ("resnet50", Resnet50Settings(width=8, stages=(1, 2), image_size=75), resnet50.Net, (3, 75, 75)),
        ("efficientnet", EfficientnetSettings(image_size=75), efficientnet.Net, (3, 75, 75)),
        ("efficientnet", EfficientnetSettings(image_size=75, stages=(2, 1, 1)), efficientnet.Net, (3, 75, 75)),
        (
            "efficientnet",
            EfficientnetSettings(variant="b3", image_size=75, stages=(1, 1)),
            efficientnet.Net,
            (3, 75, 75),
        ),
        ("gan", GanSettings(), lambda settings: BothOfTheGan(), (100,)),
    ],
)


@NETWORKS
def test_the_layers_that_the_launcher_knows_are_those_of_the_network(name, settings, net, inputs):
    known = recipes.find(name).layers(settings)
    model = net(settings).eval()
    built = {path: layer for path, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    assert list(built) == [layer.name for layer in known]
    sizes = {}
    for path, layer in built.items():
        layer.register_forward_hook(lambda layer, args, output, path=path: sizes.update({path: output[0].numel()}))
    with torch.no_grad():
        model(torch.rand(1, *inputs))
    for layer in known:
        weight = built[layer.name].weight
        assert weight.shape[:2] == (layer.outputs, layer.inputs // layer.groups), layer
        assert weight.numel() == layer.weights, layer
        assert sizes[layer.name] == layer.outputs * layer.pixels, layer


MOST = {"resnet50": 1.25, "efficientnet": 1.5}
"""How much more is kept than reckoned. Of EfficientNet torch keeps what goes into ReLU6 as well as what comes out, and
other frameworks don't."""


@NETWORKS
@pytest.mark.parametrize("half", [False, True])
def test_no_less_is_kept_for_the_backward_pass_than_the_launcher_reckons_with(name, settings, net, inputs, half):
    """A batch is checked against a card's memory by it."""
    model = net(settings)

    def of(samples: int) -> int:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return kept_bytes(lambda: model(torch.rand(samples, *inputs)))

    measured = (of(4) - of(2)) / 2
    reckoned = sum(layer.kept for layer in recipes.find(name).layers(settings)) * (2 if half else 4)
    assert reckoned <= measured
    assert half or measured <= MOST.get(name, 10) * reckoned


def test_resnet50_has_its_published_number_of_parameters_and_its_strides_in_the_3x3():
    net = resnet50.Net(Resnet50Settings())
    assert sum(parameter.numel() for parameter in net.parameters()) == 25_557_032
    for block in (module for module in net.modules() if isinstance(module, resnet50.Bottleneck)):
        assert block.reduce.stride == (1, 1)
        assert not block.norm3.weight.any()
    assert net.stage2[0].conv.stride == (2, 2)


def test_efficientnet_is_as_large_as_the_notebooks():
    """Its convolutions and its last layer have biases, and each norm two weights: counted by hand from its table."""
    layers = recipes.find("efficientnet").layers(EfficientnetSettings())
    biases = sum(layer.outputs for layer in layers)
    norms = sum(2 * layer.outputs for layer in layers if layer.name.split(".")[-1] not in ("squeeze", "excite"))
    expected = sum(layer.weights for layer in layers) + biases + norms - 2 * layers[-1].outputs
    net = efficientnet.Net(EfficientnetSettings())
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


@pytest.mark.parametrize(("size", "stride"), [(32, 2), (33, 2), (7, 2), (14, 1)])
def test_convolutions_keep_the_size_as_keras_does(size, stride):
    for kernel in (1, 3, 5):
        output = efficientnet.Convolution(1, 1, kernel, stride)(torch.zeros(1, 1, size, size))
        assert output.shape[2:] == (-(-size // stride), -(-size // stride))


def interrupted_alike(name: str, folder: Path, every: int, *words: str) -> Path:
    """A run, and one of the same job that stops after every so many steps, with the same end bit by bit."""
    complete, stops = train(name, folder / "complete", *words), f"checkpoint.stop_every={every}"
    job = small(name, *words, stops, f"run={folder / 'parts'}")
    parts = -(-len(losses(complete)) // every)
    assert [loop.main(name, module(name).train, job) for _ in range(parts)] == [85] * (parts - 1) + [0]
    states = last_state(complete), last_state(folder / "parts")
    for key in ("model", "optimizers", "precision", "random"):
        assert differences(*(state[key] for state in states), key) == []
    for column in ("loss", "lr", "loss_scale"):
        assert [row[column] for row in steps(complete)] == [row[column] for row in steps(folder / "parts")]
    assert result(complete)["eval"] == result(folder / "parts")["eval"]
    return complete


def test_images_in_folders_train_alike_whether_interrupted_or_not(tmp_path):
    folder = write_folders(tmp_path / "images", classes=2, train=8, val=3)
    words = ("data=imagenet", f"data.dir={folder}", "train.classes=2", "batch=4", "amp=o2", "epochs=2")
    complete = interrupted_alike("resnet50", tmp_path, 3, *words)
    assert len(losses(complete)) == 8
    assert 0 <= result(complete)["eval"]["accuracy"] <= 1
    assert 0 <= result(complete)["throughput"]["data_share"] < 1


def test_an_interrupted_gan_resumes_bit_by_bit(tmp_path):
    words = ("amp=o2", *DYNAMIC, "loss_scale.growth_every=3", "batch=2", "steps=5")
    assert len(last_state(interrupted_alike("gan", tmp_path, 2, *words))["optimizers"]) == 2


def test_an_image_that_turns_out_to_be_broken_fails_the_run_and_is_named(tmp_path, capsys):
    folder = write_folders(tmp_path / "images", classes=2, train=8, val=3)
    broken = folder / "train" / "n0001" / "005.png"
    broken.write_bytes(b"no image")
    words = ("data=imagenet", f"data.dir={folder}", "train.classes=2", "batch=4", "amp=o1", "epochs=1")
    assert loop.main("resnet50", resnet50.train, small("resnet50", *words, f"run={tmp_path / 'run'}")) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"resnet50: {broken} is no image that can be read")
    assert str(broken) in result(tmp_path / "run")["reason"]


def test_cifars_validation_and_test_images_are_measured_apart(tmp_path):
    folder = write_binary(tmp_path / "cifar", train=60, test=10)
    words = ("data=cifar100", f"data.dir={folder}", "train.image_size=32", "amp=o2", "steps=2")
    record = result(train("efficientnet", tmp_path / "run", *words))
    assert sorted(record["eval"]) == ["accuracy", "loss", "test_accuracy", "test_loss"]
    assert record["throughput"]["data_share"] is None  # all of it is on the device


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("efficientnet", ("data=cifar100", "data.dir=/nowhere"), "data.dir=/nowhere has no CIFAR-100; it should hold"),
        ("efficientnet", ("data=cifar100",), "data=cifar100 needs data.dir=FOLDER"),
        ("resnet50", ("data=imagenet", "data.dir=/nowhere"), "has no folder train; it should hold train/CLASS/*.JPEG"),
        ("resnet50", ("data=tfrecord",), "data=tfrecord is not one of synthetic, imagenet"),
    ],
)
def test_a_wrong_request_gets_one_line_and_leaves_nothing(tmp_path, capsys, name, words, message):
    assert loop.main(name, module(name).train, small(name, *words, f"run={tmp_path / 'run'}")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: ") and message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_run_whose_steps_were_all_skipped_is_not_done(tmp_path, capsys, level):
    words = (f"amp={level}", "amp.dtype=float16", "loss_scale.init=1e30", "steps=2")
    job = small("simplenet", *words, f"run={tmp_path / 'one'}")
    assert loop.main("simplenet", simplenet.train, job) == 1
    assert "no weight was updated: all 2 steps overflowed and were skipped" in capsys.readouterr().err
    record = result(tmp_path / "one")
    assert (record["status"], record["observed"]["verdict"]) == ("failed", "unknown")
    assert record["updates"] == {"attempted": 2, "applied": 0}
    train("simplenet", tmp_path / "other", *words, "require_proof=false")
    assert "no weight was updated: all 2 steps" in capsys.readouterr().out


def test_simplenet_is_the_published_construction(tmp_path):
    """Without activations, Glorot's weights keep the mean square of 1/3, so that the loss begins near 1/3 + 1/3.

    The published run ends at .6486 after 20 steps; .6602 after one update of ten times the gradient tells that each
    step takes off about .0013. Smaller layers scatter more about 2/3: five seeds are averaged.
    """
    words = ("train.width=256", "batch=64", "amp=o0")
    runs = [losses(train("simplenet", tmp_path / str(seed), *words, f"seed={seed}")) for seed in range(5)]
    assert {len(run) for run in runs} == {20}
    assert sum(run[0] for run in runs) / 5 == pytest.approx(2 / 3, rel=0.1)
    assert sum((run[0] - run[-1]) / 19 for run in runs) / 5 == pytest.approx(0.0013, rel=0.5)


def test_simplenets_data_is_uniform_from_zero_to_one():
    data = random_regression.load(0, 64, 256)
    assert 0 <= data.inputs.min() < 0.01 and 0.99 < data.labels.max() < 1
    assert data.inputs.mean() == pytest.approx(0.5, abs=0.02)
    assert data.digest() == random_regression.load(0, 64, 256).digest() != random_regression.load(1, 64, 256).digest()


def test_a_run_that_fails_without_a_reason_has_failed(tmp_path, monkeypatch):
    def fail(*_):
        raise Diverged("")

    monkeypatch.setattr("amp_launcher.loop.divergence.Detector.check_rows", fail)
    assert loop.main("simplenet", simplenet.train, small("simplenet", "steps=2", f"run={tmp_path}")) == 1
    assert result(tmp_path)["status"] == "failed"


def test_resnet50_decays_no_norm_and_no_bias_and_warms_up(tmp_path, monkeypatch):
    made: list[torch.optim.SGD] = []
    real = torch.optim.SGD
    monkeypatch.setattr(torch.optim, "SGD", lambda *args, **options: made.append(real(*args, **options)) or made[-1])
    train("resnet50", tmp_path, "amp=o0", "steps=10")
    decayed, others = made[0].param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (1 / 32768, 0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2, 4}
    assert {parameter.ndim for parameter in others["params"]} == {1}
    rates = [row["lr"] for row in steps(tmp_path)]
    assert rates[:2] == [0.004, 0.008]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert result(tmp_path)["throughput"]["warmup_steps"] >= 2


def test_the_gans_loss_scaling_can_be_off_and_its_sizes_be_odd(tmp_path):
    words = ("amp=o2", "amp.dtype=float16", "loss_scale=none", "train.channels=[63,63,31,7]")
    train("gan", tmp_path, "batch=2", *words, "steps=1")
    assert [row["loss_scale"] for row in steps(tmp_path)] == [None]
    assert last_state(tmp_path)["model"]["generator.conv2.weight"].shape == (31, 63, 5, 5)


def test_labels_are_softened_but_for_the_first_of_each_kind_as_alcfs_code_has_them():
    labels = gan.labels(10, GanSettings(soften=0.01, sharp=0.2), torch.device("cpu"))[:, 0].tolist()
    assert labels[:10] == pytest.approx([0] * 2 + [0.01] * 8)
    assert labels[10:] == pytest.approx([1] * 2 + [0.99] * 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gan", "resnet50"])
def test_two_ranks_train_together(tmp_path, name):
    """In evaluation two ranks would compute what one does; in training each has norms and dropout of its own."""
    words = small(name, "amp=o2", "batch=8", "steps=3", "accumulate=2", f"run={tmp_path}")
    printed = succeed(words, ranks=2, program=("-m", f"amp_launcher.recipes.{name}.train_torch"))
    assert "over 2 ranks by ddp in 2 micro-batches" in printed
    assert (result(tmp_path)["observed"]["verdict"], result(tmp_path)["world_size"]) == ("proved", 2)
    assert all(0 < row["loss"] < 10 for row in steps(tmp_path))
    assert [row["event"] for row in rows(tmp_path) if "event" in row][-1] == "end"
