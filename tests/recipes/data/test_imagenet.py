"""ImageNet's images from folders, whole and broken."""

from __future__ import annotations

import numpy
import pytest

from amp_launcher.recipes.data import imagenet
from amp_launcher.recipes.data.imagenet import _random_box
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError
from tests.recipes.data.image_files import encoded, write_folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("images") / "folders")


def load(folder, classes=2, size=32):
    return imagenet.load(Data(name="imagenet", dir=str(folder)), size, classes)


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
        load(tmp_path, classes)


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


def test_the_digest_is_of_which_images_there_are(folders, tmp_path):
    other = write_folders(tmp_path, train=7)
    digests = {load(folders)[0].digest(), load(other)[0].digest()}
    assert len(digests) == 2
    assert load(folders)[0].digest() in digests
