"""CIFAR-100 from its binary or its Python files, fully checked, or random images of its shape.

Formats: https://www.cs.toronto.edu/~kriz/cifar.html. A binary record is a coarse label, a fine label and 3,072 bytes of
red, green and blue; the Python files are pickles of a dictionary of arrays.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from amp_launcher.loop import sampling
from amp_launcher.settings import Data

from . import DataError, archive, digest, download
from .images import Images

SHAPE = (3, 32, 32)
CLASSES = 100
PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
LAYOUT = "train.bin and test.bin of the binary version, or train and test of the Python version"
ARCHIVE = download.Published(
    # Size and MD5 as HOME and datasets built on it give them.
    name="cifar-100-binary.tar.gz",
    size=168_513_733,
    md5="03b5dce01913d631647c71ecec9e9cb8",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
UNPACKED = {"cifar-100-binary/train.bin": 50_000 * (2 + PIXELS), "cifar-100-binary/test.bin": 10_000 * (2 + PIXELS)}
"""Bytes of the archive's files."""
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
    files = _find(folder)
    if files is None:
        raise DataError(
            f"data.dir={folder} has no CIFAR-100; it should hold {LAYOUT}, from {HOME}; data.download=true fetches them"
        )
    read, train, test = files
    known = read(train)
    return Cifar("cifar100", known, read(test), seed, len(known) // VALIDATION_SHARE)


def _find(folder: Path) -> tuple[Callable[[Path], Images], Path, Path] | None:
    """The function that reads the files, the training file and the test file; None if there are none."""
    for place in (folder, folder / "cifar-100-binary", folder / "cifar-100-python"):
        for read, suffix in ((read_binary, ".bin"), (read_python, "")):
            train, test = place / f"train{suffix}", place / f"test{suffix}"
            if train.is_file() and test.is_file():
                return read, train, test
    return None


def _fetch(folder: Path) -> None:
    """Download and unpack the binary version, unless another process has just done so, and remove the archive."""
    with download.locked(folder):
        if _find(folder) is None:
            fetched = download.fetch(folder, ARCHIVE)
            archive.unpack(fetched, folder / "cifar-100-binary", UNPACKED)
            fetched.unlink()


def synthetic(seed: int) -> Cifar:
    """`SYNTHETIC` random images. None is held out, since there is nothing to learn."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    pixels = random.integers(0, 256, (SYNTHETIC, *SHAPE), dtype=numpy.uint8)
    known = Images(images=pixels, labels=random.integers(0, CLASSES, len(pixels)))
    return Cifar("synthetic", known, Images(images=pixels[:0], labels=known.labels[:0]), seed, 0)


def read_binary(path: Path) -> Images:
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
    return _checked(path, records[:, 2:], records[:, 1])


def read_python(path: Path) -> Images:
    try:
        arrays = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = arrays[b"data"], numpy.asarray(arrays[b"fine_labels"])
    except Exception as error:  # unpickling what isn't a pickle may raise any, as Python's documentation says
        raise DataError(f"{path} is not a Python file of CIFAR-100: {type(error).__name__}: {error}") from None
    if labels.ndim != 1 or (len(labels) and labels.dtype.kind not in "iu"):
        raise DataError(f"{path} is not a Python file of CIFAR-100: its fine_labels are no whole numbers")
    if not isinstance(pixels, numpy.ndarray) or pixels.dtype != numpy.uint8 or pixels.shape != (len(labels), PIXELS):
        raise DataError(f"{path} should hold {len(labels)} images of {PIXELS} bytes for its labels")
    return _checked(path, pixels, labels)


def _checked(path: Path, pixels: numpy.ndarray, labels: numpy.ndarray) -> Images:
    if len(labels) == 0 or labels.max() >= CLASSES or labels.min() < 0:
        raise DataError(f"{path} has labels other than 0 to {CLASSES - 1}, or no images")
    return Images(images=numpy.array(pixels).reshape(-1, *SHAPE), labels=labels.astype(numpy.int64))


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and nothing else, since an untrusted pickle can call any function."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = ("_reconstruct", "ndarray", "dtype") if module.split(".")[0] == "numpy" else ()
        if name in allowed or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
