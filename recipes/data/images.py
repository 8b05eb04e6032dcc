"""Handwritten digits, 28x28: scikit-learn's, MNIST's, or random ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
from amp_launcher.loop import sampling
from amp_launcher.recipe import MNIST_FILES
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError

from . import DataError, digest, idx

SIDE = 28
CLASSES = 10
DIGITS_TRAINED_ON = 1536
"""Of 1,797, a multiple of 128, 256 and 512; 261 are held out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Images of shape [count, channels, height, width] with their labels, int64 of shape [count].

    Digits are float32 from 0 to 1, of shape [count, 1, 28, 28].
    """

    images: numpy.ndarray
    labels: numpy.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def arrays(self) -> tuple[numpy.ndarray, ...]:
        """Both, contiguous."""
        return numpy.ascontiguousarray(self.images), numpy.ascontiguousarray(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """Training images and held-out images, of which there may be none."""

    name: str
    train: Images
    held_out: Images

    def digest(self) -> str:
        return digest(*self.train.arrays, *self.held_out.arrays)


def load(data: Data, seed: int) -> DataSet:
    """The data set that `data` names. Raises `SettingsError` for missing or broken files."""
    if data.name == "digits":
        return digits()
    if data.name == "mnist":
        return mnist(data.dir, data.download)
    return synthetic(seed)


def digits() -> DataSet:
    """scikit-learn's 8x8 digits, enlarged to 24x24 with a border of 2.

    The split is the same for every seed, so that accuracies can be compared.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SettingsError("data=digits needs scikit-learn: pip install scikit-learn", "data.name") from None
    source = load_digits()
    images = (source.images / 16).astype(numpy.float32).repeat(3, axis=1).repeat(3, axis=2)
    images = numpy.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None]
    labels = source.target.astype(numpy.int64)
    order = sampling.order(0, 0, len(labels))
    train, held_out = order[:DIGITS_TRAINED_ON], order[DIGITS_TRAINED_ON:]
    return DataSet(
        name="digits",
        train=Images(images=images[train], labels=labels[train]),
        held_out=Images(images=images[held_out], labels=labels[held_out]),
    )


def mnist(folder: str | None, download: bool) -> DataSet:
    """MNIST from its four IDX files, plain or gzipped."""
    if folder is None:
        raise DataError("data=mnist needs data.dir=FOLDER, which holds or is to hold the IDX files")
    return DataSet(
        name="mnist",
        train=_mnist_part(Path(folder), "train", download),
        held_out=_mnist_part(Path(folder), "t10k", download),
    )


def _mnist_part(folder: Path, part: str, download: bool) -> Images:
    pixels = idx.read(_mnist_file(folder, f"{part}-images-idx3-ubyte", download), 3)
    labels = idx.read(_mnist_file(folder, f"{part}-labels-idx1-ubyte", download), 1)
    if pixels.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{part} images in {folder} are {pixels.shape[1]}x{pixels.shape[2]}, not 28x28")
    if len(pixels) != len(labels):
        raise DataError(f"{folder} has {len(pixels)} {part} images and {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{folder} has {part} files without images")
    if labels.max() >= CLASSES:
        raise DataError(f"{part} labels in {folder} go up to {labels.max()}, not 9")
    images = pixels[:, None].astype(numpy.float32) / 255
    return Images(images=images, labels=labels.astype(numpy.int64))


def _mnist_file(folder: Path, name: str, download: bool) -> Path:
    path = idx.find(folder, name)
    if path is None and download:
        idx.fetch(folder, name)
        path = idx.find(folder, name)
    if path is None:
        raise DataError(
            f"data.dir={folder} has neither {name} nor {name}.gz; it should hold {', '.join(MNIST_FILES)}, and "
            "data.download=true fetches them"
        )
    return path


def synthetic(seed: int) -> DataSet:
    """Random images and labels, as many as MNIST's training images. None is held out: there is nothing to learn."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    images = random.random((60000, 1, SIDE, SIDE), dtype=numpy.float32)
    labels = random.integers(0, CLASSES, 60000)
    return DataSet(
        name="synthetic",
        train=Images(images=images, labels=labels),
        held_out=Images(images=images[:0], labels=labels[:0]),
    )
