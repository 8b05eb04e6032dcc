"""The recipes in TensorFlow: networks beside torch's, and TFRecord files."""

from __future__ import annotations

import numpy
import pytest
import tensorflow as tf
import torch

from amp_launcher.recipes.efficientnet import EfficientnetSettings
from amp_launcher.recipes.efficientnet import train_tensorflow as efficientnet
from amp_launcher.recipes.efficientnet import train_torch as torch_efficientnet
from amp_launcher.recipes.resnet50 import Resnet50Settings
from amp_launcher.recipes.resnet50 import train_tensorflow as resnet50
from amp_launcher.recipes.resnet50 import train_torch as torch_resnet50
from amp_launcher.torch.supervised import draw_glorot
from tests.amp_launcher.contract.runs import losses, train
from tests.amp_launcher.contract.weights import give_keras
from tests.amp_launcher.torch.trainers import result
from tests.recipes.data.image_files import encoded, write_folders


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (resnet50, torch_resnet50, Resnet50Settings(width=8, stages=(1, 2), image_size=33, classes=10)),
        (efficientnet, torch_efficientnet, EfficientnetSettings(stages=(1, 2), image_size=33)),
    ],
    ids=["resnet50", "efficientnet"],
)
def test_networks_put_out_what_torchs_do_from_equal_weights(ours, theirs, settings):
    net = theirs.Net(settings)
    draw_glorot(net)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.weight.uniform_(0.5, 1.5)
    weights = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    images = numpy.random.default_rng(0).random((4, 33, 33, 3), dtype=numpy.float32)
    with torch.no_grad():
        expected = net.train()(torch.from_numpy(images.transpose(0, 3, 1, 2))).numpy()
    outputs = give_keras(ours.network(settings), weights)(images, training=True)
    assert numpy.asarray(outputs) == pytest.approx(expected, rel=1e-3, abs=1e-3)


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
    words = ["train.classes=2", "train.width=8", "train.image_size=32", "train.stages=[1,1]", "batch=4", "amp=o0"]
    one, other = (
        train("tensorflow", "resnet50", tmp_path / name, *words, "epochs=2", f"data={name}", f"data.dir={folder}")
        for name, folder in (("imagenet", folders), ("tfrecord", records))
    )
    assert losses(one) == losses(other) and len(losses(one)) == 8
    assert result(one)["eval"] == result(other)["eval"]
    assert 0 <= result(one)["throughput"]["data_share"] < 1


def example(image: bytes, label: int) -> bytes:
    """A record as TensorFlow's own tools write it."""
    features = {
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/format": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"PNG"])),
        "image/object/bbox/xmin": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
