"""The IDX files of MNIST: reading, with full checks, and downloading.

Format: http://yann.lecun.com/exdb/mnist/ (big-endian magic, sizes, then bytes).
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy

from . import DataError, download

UNSIGNED_BYTES = 0x08
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
# Digests as in torchvision/datasets/mnist.py, sizes as http://yann.lecun.com/exdb/mnist/ gives them.
FILES = {
    name: download.Published(
        name=f"{name}.gz", size=size, md5=md5, urls=tuple(f"{mirror}{name}.gz" for mirror in MIRRORS)
    )
    for name, size, md5 in (
        ("train-images-idx3-ubyte", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
}


def find(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or with `.gz`; None if there is none."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read(path: Path, dimensions: int) -> numpy.ndarray:
    """The file's array, uint8 with that many dimensions.

    Raises `SettingsError` for anything but a whole IDX file of unsigned bytes.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from None
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if len(content) < header:
        raise DataError(
            f"{path} is not an IDX file of {dimensions} dimensions: it has {len(content)} bytes, and its head alone "
            f"would have {header}"
        )
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of {dimensions} dimensions: it begins with {content[:4].hex()} where "
            f"{magic.hex()} should be"
        )
    shape = tuple(int(size) for size in numpy.frombuffer(content, ">u4", dimensions, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} says {' x '.join(map(str, shape))}, which makes {expected} bytes, and has {len(content)}"
        )
    return numpy.frombuffer(content, numpy.uint8, offset=header).reshape(shape)


def fetch(folder: Path, name: str) -> None:
    """Download `name`.gz into the folder, unless another process has just done so.

    Raises `SettingsError` where no mirror has it.
    """
    with download.locked(folder):
        if find(folder, name) is None:
            download.fetch(folder, FILES[name])
