"""Digits, MNIST and random images as arrays."""

from __future__ import annotations

import gzip

import numpy
import pytest
from sklearn.datasets import load_digits

from amp_launcher.recipes.data import idx, images
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError
from tests.recipes.data.idx_files import encode, write_mnist


def test_digits_are_all_there_once_and_as_mnist_shapes_them():
    data = images.digits()
    assert (data.train.images.shape, data.held_out.images.shape) == ((1536, 1, 28, 28), (261, 1, 28, 28))
    assert data.train.images.dtype == numpy.float32
    assert (data.train.images.min(), data.train.images.max()) == (0, 1)
    everything = numpy.concatenate([data.train.images, data.held_out.images])
    middle = everything[:, 0, 3:26:3, 3:26:3].reshape(1797, -1) * 16
    published = load_digits().images.reshape(1797, -1)
    assert sorted(map(tuple, middle.tolist())) == sorted(map(tuple, published.tolist()))


def test_held_out_digits_are_of_every_kind():
    assert numpy.bincount(images.digits().held_out.labels, minlength=10).min() >= 15


def test_mnist_is_scaled_and_keeps_its_labels(tmp_path):
    write_mnist(tmp_path)
    data = images.load(Data(name="mnist", dir=str(tmp_path)), seed=0)
    raw = numpy.frombuffer((tmp_path / "train-images-idx3-ubyte").read_bytes(), numpy.uint8, offset=16)
    assert numpy.allclose(data.train.images.ravel() * 255, raw)
    assert (data.train.images.shape, data.train.labels.dtype) == ((64, 1, 28, 28), numpy.int64)
    assert len(data.held_out) == 16


def test_mnist_without_a_folder_or_with_a_file_missing_is_refused_by_name(tmp_path):
    with pytest.raises(SettingsError, match=r"data=mnist needs data\.dir=FOLDER"):
        images.mnist(None, download=False)
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    says = r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte\.gz; it should hold train-images-idx3-ubyte, "
    with pytest.raises(SettingsError, match=says):
        images.mnist(str(tmp_path), download=False)


@pytest.mark.parametrize(
    ("name", "array", "complaint"),
    [
        ("train-images-idx3-ubyte", numpy.zeros((64, 20, 20), numpy.uint8), "are 20x20, not 28x28"),
        ("train-images-idx3-ubyte", numpy.zeros((63, 28, 28), numpy.uint8), "63 train images and 64 labels"),
        ("t10k-labels-idx1-ubyte", numpy.full(16, 10, numpy.uint8), "go up to 10, not 9"),
        (None, None, "has t10k files without images"),
    ],
)
def test_mnist_files_that_do_not_fit_each_other_or_have_no_images_are_refused(tmp_path, name, array, complaint):
    write_mnist(tmp_path, held_out=16 if name else 0)
    if name:
        (tmp_path / name).write_bytes(encode(array))
    with pytest.raises(SettingsError, match=complaint):
        images.mnist(str(tmp_path), download=False)


def test_missing_files_are_fetched_where_that_is_asked_for(tmp_path, monkeypatch, publish):
    for path in write_mnist(tmp_path / "source").iterdir():
        file = publish(f"{path.name}.gz", gzip.compress(path.read_bytes()))
        monkeypatch.setitem(idx.FILES, path.name, file)
    for download in (True, False):
        assert len(images.mnist(str(tmp_path / "new"), download=download).train) == 64


def test_synthetic_images_come_from_the_seed():
    one, again, other = (images.synthetic(seed) for seed in (1, 1, 2))
    assert one.digest() == again.digest() != other.digest()
    assert one.train.images.shape == (60000, 1, 28, 28)
