"""The recipes in TensorFlow: their numbers at every level, beside torch's, and their resuming."""

from __future__ import annotations

import importlib
from pathlib import Path

import keras
import numpy
import pytest
import tensorflow as tf
import torch

from recipes.data import cifar
from recipes.efficientnet import EfficientnetSettings
from recipes.recipe import NAMES, find
from recipes.resnet50 import Resnet50Settings
from recipes.simplenet import SimplenetSettings
from recipes.tensorflow_ import efficientnet, gan, loop, mnist, resnet50
from recipes.torch_ import efficientnet as torch_efficientnet
from recipes.torch_ import resnet50 as torch_resnet50
from recipes.torch_.supervised import draw_glorot
from tests.recipes.contract.weights import give_keras
from tests.recipes.data.idx_files import write_mnist
from tests.recipes.data.image_files import encoded, write_folders
from tests.recipes.torch_.trainers import result, steps

# Tracing and optimizing a graph takes longer than its steps, and a CPU emulates float16, most slowly in convolutions:
# hence small networks and few samples.
SMALL = {
    "mnist": ("data=mnist", "batch=4", "train.lr=0.1", "train.dropout_conv=0", "train.dropout_dense=0", "steps=2"),
    "simplenet": ("train.width=64", "batch=32", "steps=6"),
    "resnet50": (
        "train.width=8",
        "train.stages=[1,1]",
        "train.image_size=32",
        "train.classes=10",
        "batch=8",
        "steps=4",
    ),
    "efficientnet": (
        "data=synthetic",
        "train.stages=[1,1]",
        "train.image_size=32",
        "batch=4",
        "train.lr=1e-4",
        "steps=2",
    ),
    "gan": ("data=mnist", "batch=4", "steps=4", "train.channels=[8,8,4,4]"),
}
HALF = (
    ("amp=o1", "amp.dtype=bfloat16"),
    ("amp=o2", "amp.dtype=bfloat16"),
    ("amp=o3", "amp.dtype=bfloat16"),
    ("amp=o2", "amp.dtype=float16", "loss_scale=dynamic"),
)
"""Every level that the support matrix has on a CPU, where float16 is slow in convolutions: of these networks, MNIST's
has them all, and the GAN's has float16 in a test of its own."""
MODES = dict.fromkeys(SMALL, HALF[:3]) | {
    "mnist": HALF,
    "simplenet": (*HALF, ("amp=o2", "amp.dtype=float16", "loss_scale=static"), ("amp=o3", "amp.dtype=float16")),
}


@pytest.fixture(scope="module", autouse=True)
def digits(tmp_path_factory):
    """32 images in MNIST's files."""
    folder = write_mnist(tmp_path_factory.mktemp("mnist"), 32, 8)
    for name in ("mnist", "gan"):
        SMALL[name] += (f"data.dir={folder}",)


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(cifar, "SYNTHETIC", 16)  # all are in the graph


@pytest.fixture
def small_gan(monkeypatch):
    monkeypatch.setattr(gan, "DISCRIMINATOR", (4, 8, 8))


def small(name: str, *words: str) -> list[str]:
    """The words of a small job, of which these take the place of those with the same key."""
    by_key = {word.partition("=")[0]: word for word in (*SMALL[name], "checkpoint.every=0", *words)}
    return list(by_key.values())


def train(name: str, folder: Path, *words: str) -> Path:
    """Run a recipe in this process, where it has to succeed."""
    module = importlib.import_module(f"recipes.tensorflow_.{name}")
    assert loop.main(name, module.train, small(name, *words, f"run={folder}")) == loop.DONE
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in steps(folder)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound"), [("mnist", 0.01), ("simplenet", 0.01), ("resnet50", 0.01), ("efficientnet", 0.01), ("gan", 0.02)]
)
def test_every_level_is_proved_and_its_losses_are_those_of_float32_within_a_bound(
    tmp_path, monkeypatch, small_gan, name, bound
):
    """Without dropout: Keras draws it in the dtype that a layer computes in, so that other units would fall out."""
    monkeypatch.setattr(gan, "DROPOUT", 0.0)
    plain = losses(train(name, tmp_path / "o0", "amp=o0"))
    assert result(tmp_path / "o0")["observed"]["verdict"] == "proved"
    for number, words in enumerate(MODES[name]):
        folder = train(name, tmp_path / f"half{number}", *words)
        record = result(folder)
        assert losses(folder) == pytest.approx(plain, rel=bound), words
        assert losses(folder) != plain
        observed = record["observed"]
        assert (observed["verdict"], observed["dtype"], observed["half_flop_share"]) == (
            "proved",
            words[1].partition("=")[2],
            1.0,
        )
        assert record["loss_scale"]["skipped_steps"] == 0


@pytest.mark.parametrize("name", ["resnet50", "efficientnet"])
def test_networks_put_out_what_torchs_do_from_equal_weights(name):
    if name == "resnet50":
        settings = Resnet50Settings(width=8, stages=(1, 2), image_size=33, classes=10)
        ours, theirs = resnet50.network(settings), torch_resnet50.Net(settings)
    else:
        settings = EfficientnetSettings(stages=(1, 2), image_size=33)
        ours, theirs = efficientnet.network(settings), torch_efficientnet.Net(settings)
    draw_glorot(theirs)
    with torch.no_grad():
        for each in theirs.modules():
            if isinstance(each, torch.nn.BatchNorm2d):
                each.weight.uniform_(0.5, 1.5)
    give_keras(ours, {name: each.detach().numpy() for name, each in theirs.named_parameters()})
    images = numpy.random.default_rng(0).random((4, 33, 33, 3), dtype=numpy.float32)
    with torch.no_grad():
        expected = theirs.train()(torch.from_numpy(images.transpose(0, 3, 1, 2))).numpy()
    assert numpy.asarray(ours(images, training=True)) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if "tensorflow" in find(name).trainers and name != "script"])
def test_the_recipes_that_have_max_pooling_are_known(name):
    module = importlib.import_module(f"recipes.tensorflow_.{name}")
    hyper = SimplenetSettings(width=8) if name == "simplenet" else find(name).settings()
    nets = [gan.discriminator_network(), gan.generator_network(hyper)] if name == "gan" else [module.network(hyper)]
    pools = [layer for net in nets for layer in net.layers if isinstance(layer, keras.layers.MaxPooling2D)]
    assert find(name).max_pools == bool(pools)


def test_max_pooling_that_is_to_be_deterministic_under_xla_is_refused_in_one_line(tmp_path, capfd):
    words = small("mnist", "amp=o0", "xla=true", "deterministic=true", "device=cpu", f"run={tmp_path / 'run'}")
    assert loop.main("mnist", mnist.train, words) == 2
    printed = capfd.readouterr().err
    assert len(printed.splitlines()) == 1
    assert "recipe=mnist has max-pooling; say deterministic=false or xla=false" in printed
    assert not (tmp_path / "run").exists()


def test_labels_of_the_gan_are_torchs():
    from recipes.gan import GanSettings
    from recipes.torch_ import gan as torch_gan

    settings = GanSettings(soften=0.1, sharp=0.2)
    expected = torch_gan.labels(10, settings, torch.device("cpu")).numpy()
    assert gan.labels(10, settings) == pytest.approx(expected)


@pytest.mark.parametrize("per_optimizer", [False, True])
def test_the_gan_has_two_losses_and_loss_scales_that_move_once_a_step_and_goes_on_bit_by_bit(
    tmp_path, small_gan, per_optimizer
):
    words = ("amp=o2", "amp.dtype=float16", "loss_scale.init=64", "loss_scale.growth_every=2")
    words = (*words, f"loss_scale.per_optimizer={str(per_optimizer).lower()}")
    whole = train("gan", tmp_path / "whole", *words)
    assert result(whole)["observed"]["verdict"] == "proved"
    assert [row["loss_scale"] for row in steps(whole)] == [64, 64, 128, 128]
    for row in steps(whole):
        assert sorted(row["losses"]) == ["discriminator", "generator"]
        assert row["loss"] == pytest.approx(sum(row["losses"].values()))
    if not per_optimizer:  # saved and restored in tests/recipes/contract
        return
    parts = small("gan", *words, "checkpoint.stop_every=2", f"run={tmp_path / 'parts'}")
    assert [loop.main("gan", gan.train, parts) for _ in range(2)] == [85, 0]
    assert losses(tmp_path / "parts") == losses(whole)


def test_tfrecord_files_that_tensorflow_wrote_train_as_the_same_images_in_folders(tmp_path):
    folders = write_folders(tmp_path / "folders", classes=2, train=8, val=2)
    records = tmp_path / "records"
    records.mkdir()
    number = 0
    for part, count in (("train", 8), ("validation", 2)):
        with tf.io.TFRecordWriter(str(records / f"{part}-00000-of-00001")) as writer:
            for label in (1, 2):
                for _ in range(count):
                    writer.write(example(encoded(number), label))
                    number += 1
    runs = []
    for name, folder in (("imagenet", folders), ("tfrecord", records)):
        words = [f"data={name}", f"data.dir={folder}", "train.classes=2", "train.width=8", "train.image_size=32"]
        words += ["train.stages=[1,1]"]
        run = tmp_path / f"run-{name}"
        words += ["batch=4", "amp=o0", "epochs=2", "checkpoint.every=0", f"run={run}"]
        assert loop.main("resnet50", resnet50.train, words) == loop.DONE
        runs.append(run)
    one, other = (losses(run) for run in runs)
    assert one == other and len(one) == 8
    assert result(runs[0])["eval"] == result(runs[1])["eval"]
    assert 0 <= result(runs[0])["throughput"]["data_share"] < 1


def example(image: bytes, label: int) -> bytes:
    """A record as TensorFlow's own tools write it."""
    features = {
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/format": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"PNG"])),
        "image/object/bbox/xmin": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
