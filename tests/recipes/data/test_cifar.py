"""CIFAR-100's files, whole and broken."""

from __future__ import annotations

import tarfile

import numpy
import pytest

from amp_launcher.recipes.data import cifar
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError
from tests.recipes.data.cifar_files import write_binary


@pytest.fixture
def folder(tmp_path):
    return write_binary(tmp_path / "data")


def load(folder, seed=0):
    return cifar.load(Data(name="cifar100", dir=str(folder)), seed)


def test_a_fifth_of_the_training_images_is_held_out_by_the_seed_and_never_trained_on(folder):
    data = load(folder)
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 10, 10)
    assert data.train.images.shape == (40, 3, 32, 32) and data.train.images.dtype == numpy.uint8
    known = {image.tobytes() for image in data.train.images}
    assert not known & {image.tobytes() for image in data.validation.images}
    assert load(folder).digest() == data.digest() != load(folder, seed=1).digest()


def test_fine_labels_and_channels_are_where_they_belong(folder):
    content = bytearray((folder / "test.bin").read_bytes())
    content[:2] = (3, 77)
    content[2 : 2 + 1024] = bytes([9]) * 1024
    (folder / "test.bin").write_bytes(content)
    loaded = load(folder).test
    assert loaded.labels[0] == 77
    assert (loaded.images[0, 0] == 9).all()


def test_the_files_may_lie_in_the_archives_own_folder(folder, tmp_path):
    folder.rename(folder.with_name("cifar-100-binary"))
    assert len(load(tmp_path).train) == 40


def test_a_folder_without_cifar_is_refused_with_the_expected_files(tmp_path):
    (tmp_path / "train.bin").touch()
    with pytest.raises(
        SettingsError, match=r"has no CIFAR-100; it should hold train\.bin and test\.bin of the binary.*from https://"
    ):
        load(tmp_path)


def test_the_published_archive_is_downloaded_unpacked_and_removed(folder, tmp_path, monkeypatch, publish):
    with tarfile.open(tmp_path / "archive", "w:gz") as archive:
        archive.add(folder, "cifar-100-binary")
    monkeypatch.setattr(cifar, "ARCHIVE", publish("cifar.tgz", (tmp_path / "archive").read_bytes()))
    new = tmp_path / "new"
    loaded = cifar.load(Data(name="cifar100", dir=str(new), download=True), 0)
    assert loaded.digest() == load(folder).digest() == load(new).digest()
    assert sorted(path.name for path in new.iterdir()) == [".download.lock", "cifar-100-binary"]
    assert sorted(path.name for path in (new / "cifar-100-binary").iterdir()) == ["test.bin", "train.bin"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"test\.bin has 0 bytes, which is not a whole number of CIFAR-100's records of 3074"),
        (bytes(3073), r"test\.bin has 3073 bytes"),
        (bytes([0, 100]) + bytes(3072), r"test\.bin has labels other than 0 to 99"),
    ],
)
def test_a_broken_binary_file_is_named(folder, content, complaint):
    (folder / "test.bin").write_bytes(content)
    with pytest.raises(SettingsError, match=complaint):
        load(folder)


def test_synthetic_images_hold_nothing_out():
    data = cifar.load(Data(name="synthetic"), 0)
    assert (len(data.train), len(data.validation), len(data.test)) == (40_000, 0, 0)
