"""The recipes in TensorFlow: networks beside torch's, and images in folders."""

from __future__ import annotations

import numpy
import pytest
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
from tests.recipes.data.image_files import write_folders


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (resnet50, torch_resnet50, Resnet50Settings(width=8, stages=(1, 2), image_size=33, classes=10)),
        (efficientnet, torch_efficientnet, EfficientnetSettings(stages=(1, 2), image_size=33)),
        (efficientnet, torch_efficientnet, EfficientnetSettings(variant="b3", stages=(1, 1), image_size=33)),
    ],
    ids=["resnet50", "efficientnet", "efficientnet-b3"],
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


def test_resnet50_trains_on_images_in_folders_and_tells_the_share_of_waiting_for_them(tmp_path):
    folders = write_folders(tmp_path / "folders", classes=2, train=8, val=2)
    words = ["train.classes=2", "train.width=8", "train.image_size=32", "train.stages=[1,1]", "batch=4", "amp=o0"]
    run = train("tensorflow", "resnet50", tmp_path / "run", *words, "epochs=2", "data=imagenet", f"data.dir={folders}")
    assert len(losses(run)) == 8
    assert 0 <= result(run)["throughput"]["data_share"] < 1
