"""CIFAR-100 from its binary files, fully checked, or random images of its shape.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. A record is a coarse label, a fine label and 3,072 bytes of red,
green and blue.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import numpy
from amp_launcher.loop import sampling
from amp_launcher.settings import Data

from . import DataError, digest, download
from .images import Images

SHAPE = (3, 32, 32)
CLASSES = 100
PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
PARTS = ("train.bin", "test.bin")
LAYOUT = f"{' and '.join(PARTS)} of the binary version"
FOLDER = "cifar-100-binary"
"""Of the archive."""
ARCHIVE = download.Published(
    # Size and MD5 as HOME and datasets built on it give them.
    name="cifar-100-binary.tar.gz",
    size=168_513_733,
    md5="03b5dce01913d631647c71ecec9e9cb8",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
VALIDATION_SHARE = 5
"""One in five training images is held out: 10,000 of 50,000, as in the notebook."""

SYNTHETIC = 40_000
"""Random images, as many as are trained on of CIFAR-100."""


class Cifar:
    """Images, uint8 of shape [count, 3, 32, 32], with their fine labels.

    Some of the training images are held out for validation. Which ones is a function of the seed, so that a resumed run
    doesn't train on them either.
    """

    def __init__(self, name: str, known: Images, test: Images, seed: int, held_out: int) -> None:
        trained_on, validation = sampling.split(seed, len(known), held_out)
        self.name = name
        self.train = Images(images=known.images[trained_on], labels=known.labels[trained_on])
        self.validation = Images(images=known.images[validation], labels=known.labels[validation])
        self.test = test

    def digest(self) -> str:
        return digest(*self.train.arrays, *self.validation.arrays, *self.test.arrays)


def load(data: Data, seed: int) -> Cifar:
    """CIFAR-100 from data.dir, or random images. Raises `SettingsError` for missing or broken files."""
    if data.name == "synthetic":
        return synthetic(seed)
    if data.dir is None:
        raise DataError(f"data=cifar100 needs data.dir=FOLDER with {LAYOUT}")
    folder = Path(data.dir)
    if data.download and _find(folder) is None:
        _fetch(folder)
    place = _find(folder)
    if place is None:
        raise DataError(
            f"data.dir={folder} has no CIFAR-100; it should hold {LAYOUT}, from {HOME}; data.download=true fetches them"
        )
    known, test = (read(place / part) for part in PARTS)
    return Cifar("cifar100", known, test, seed, len(known) // VALIDATION_SHARE)


def _find(folder: Path) -> Path | None:
    """The folder with the files: this one, or the archive's in it."""
    places = (folder, folder / FOLDER)
    return next((place for place in places if all((place / part).is_file() for part in PARTS)), None)


def _fetch(folder: Path) -> None:
    """Download and unpack the files, unless another process has just done so, and remove the archive. `download.fetch`
    has checked its digest."""
    with download.locked(folder):
        if _find(folder) is None:
            fetched = download.fetch(folder, ARCHIVE)
            try:
                _unpack(fetched, folder / FOLDER)
            except OSError as error:
                raise DataError(f"{fetched} can't be unpacked into {folder}: {error.strerror or error}") from None
            fetched.unlink()


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as members:
        for part in PARTS:
            aside = folder / f".{part}.part"
            source = members.extractfile(f"{FOLDER}/{part}")
            assert source is not None  # a file
            with source, aside.open("wb") as written:
                shutil.copyfileobj(source, written)
            os.replace(aside, folder / part)


def synthetic(seed: int) -> Cifar:
    """`SYNTHETIC` random images. None is held out, since there is nothing to learn."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    pixels = random.integers(0, 256, (SYNTHETIC, *SHAPE), dtype=numpy.uint8)
    known = Images(images=pixels, labels=random.integers(0, CLASSES, len(pixels)))
    return Cifar("synthetic", known, Images(images=pixels[:0], labels=known.labels[:0]), seed, 0)


def read(path: Path) -> Images:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from None
    record = 2 + PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"{path} has {len(content)} bytes, which is not a whole number of CIFAR-100's records of {record}"
        )
    records = numpy.frombuffer(content, numpy.uint8).reshape(-1, record)
    labels = records[:, 1].astype(numpy.int64)
    if labels.max() >= CLASSES:
        raise DataError(f"{path} has labels other than 0 to {CLASSES - 1}")
    return Images(images=numpy.array(records[:, 2:]).reshape(-1, *SHAPE), labels=labels)
