"""ImageNet's images from folders and from TFRecord files, whole and broken."""

from __future__ import annotations

import numpy
import pytest

from amp_launcher.recipes.data import imagenet, tfrecord
from amp_launcher.recipes.data.imagenet import _random_box
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError
from tests.recipes.data.image_files import encoded, example, write_folders, write_records


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("images") / "folders")


@pytest.fixture(scope="module")
def records(tmp_path_factory, folders):
    return write_records(tmp_path_factory.mktemp("images") / "records", folders)


def load(folder, name="imagenet", classes=2, size=32):
    return imagenet.load(Data(name=name, dir=str(folder)), size, classes)


def test_images_come_in_the_shape_of_their_indices_with_their_labels(folders):
    train, held_out = load(folders)
    assert (len(train), len(held_out)) == (16, 4)
    images, labels = train.augmented(0, 0, numpy.array([[0, 9], [15, 2]]))
    assert (images.shape, images.dtype) == ((2, 2, 32, 32, 3), numpy.uint8)
    assert labels.tolist() == [[0, 1], [1, 0]]


def test_an_augmented_image_depends_on_seed_epoch_and_index_alone(folders):
    train, _ = load(folders)
    one = train.augmented(1, 2, numpy.array([3, 4]))[0]
    assert numpy.array_equal(one[1], train.augmented(1, 2, numpy.array([[4]]))[0][0, 0])
    assert not numpy.array_equal(one, train.augmented(1, 3, numpy.array([3, 4]))[0])
    assert not numpy.array_equal(one, train.augmented(0, 2, numpy.array([3, 4]))[0])
    assert numpy.array_equal(train.plain(numpy.array([3]))[0], train.plain(numpy.array([3]))[0])


def test_tfrecord_files_of_the_same_images_give_the_same(folders, records):
    for one, other in zip(load(folders), load(records, "tfrecord"), strict=True):
        indices = numpy.arange(len(one))
        assert len(one) == len(other)
        for mine, theirs in zip(one.augmented(0, 5, indices), other.augmented(0, 5, indices), strict=True):
            assert numpy.array_equal(mine, theirs)
        for mine, theirs in zip(one.plain(indices), other.plain(indices), strict=True):
            assert numpy.array_equal(mine, theirs)


def test_a_random_part_lies_in_the_image_at_any_size_and_is_a_middle_square_where_none_fits():
    random, sizes = numpy.random.default_rng(0), []
    for _ in range(500):
        left, upper, right, lower = _random_box(50, 40, random.random(23).tolist())
        assert 0 <= left < right <= 50 and 0 <= upper < lower <= 40
        assert 0.7 < (right - left) / (lower - upper) < 1.4
        sizes.append((right - left) * (lower - upper) / 2000)
    assert 0.07 < min(sizes) < 0.12 and max(sizes) > 0.85
    assert _random_box(100, 4, [0.999] * 23) == (48, 0, 52, 4)


def touch(*names):
    return lambda folder: [(folder / name).touch() for name in names]


@pytest.mark.parametrize(
    ("make", "classes", "complaint"),
    [
        (touch(), 2, "has no folder train; it should hold train/CLASS"),
        (write_folders, 1000, "has 2 folders of images, and train.classes=1000; say "),
        (lambda folder: (folder / "train" / "a").mkdir(parents=True), 2, "has 1 folder of images"),
        (
            lambda folder: (write_folders(folder) / "val" / "n0001").rename(folder / "val" / "n0002"),
            2,
            "val has a folder n0002, and .*/train has none",
        ),
        (lambda folder: write_folders(folder, train=0), 2, "train/n0000 has no files"),
        (lambda folder: write_folders(folder, val=0), 2, "val/n0000 has no files"),
    ],
)
def test_another_layout_of_folders_is_refused_with_the_expected_one(tmp_path, make, classes, complaint):
    make(tmp_path)
    with pytest.raises(SettingsError, match=complaint):
        load(tmp_path, "imagenet", classes)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (touch(), "has no TFRecord files train-"),
        (touch("train-00000-of-00004", "train-00003-of-00004"), "lacks 2 of 4 TFRecord files.*train-00001-of-00004"),
        (touch("train-0-of-1", "train-1-of-2"), r"of several sets: train as \*-of-00001 and \*-of-00002"),
        (lambda folder: (folder / "train-0-of-1").mkdir(), "train-0-of-1 can't be read: Is a directory"),
        (touch("train-0-of-1"), "are empty"),
        (lambda folder: (folder / "train-0-of-1").write_bytes(b"abc"), "breaks off at byte 0"),
    ],
)
def test_other_tfrecord_files_are_refused_with_what_is_wrong(tmp_path, make, complaint):
    make(tmp_path)
    with pytest.raises(SettingsError, match=complaint):
        load(tmp_path, "tfrecord")


def test_a_broken_image_is_named_when_it_is_read(tmp_path):
    folder = write_folders(tmp_path)
    (folder / "train" / "n0000" / "001.png").write_bytes(encoded(0)[:100])
    (folder / "train" / "n0000" / "002.png").write_bytes(b"no image")
    huge = bytearray(encoded(0, "JPEG"))
    sizes = huge.index(b"\xff\xc0") + 5
    huge[sizes : sizes + 4] = b"\xff" * 4
    (folder / "train" / "n0000" / "003.png").write_bytes(huge)
    train, _ = load(folder)
    for index in (1, 2, 3):
        with pytest.raises(SettingsError, match=rf"00{index}\.png is no image that can be read"):
            train.plain(numpy.array([index]))


def test_a_truncated_tfrecord_file_is_named(tmp_path, folders):
    folder = write_records(tmp_path / "records", folders)
    path = folder / "train-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SettingsError, match="train-00001-of-00002 is no whole TFRecord file: it breaks off at byte"):
        load(folder, "tfrecord")


def test_a_record_of_something_else_or_of_a_strange_label_is_named(tmp_path):
    path = tmp_path / "train-00000-of-00001"
    for content in (b"\xff" * 20, b"", example(b"", 1)[:30], b"\x0a\x02\x0a\x00"):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="no record of image/encoded and image/class/label"):
            tfrecord.read(path, 0, len(content))
    path.write_bytes(example(encoded(0), 300))
    assert tfrecord.read(path, 0, path.stat().st_size) == (encoded(0), 300)


def test_the_digest_is_of_which_images_there_are(folders, records, tmp_path):
    other = write_folders(tmp_path, train=7)
    digests = {load(folders)[0].digest(), load(records, "tfrecord")[0].digest(), load(other)[0].digest()}
    assert len(digests) == 3
    assert load(folders)[0].digest() in digests
