"""IDX files for tests."""

from __future__ import annotations

from pathlib import Path

import numpy


def encode(array: numpy.ndarray) -> bytes:
    """An array of bytes in the IDX format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 0x08, array.ndim)) + sizes + array.tobytes()


def write_mnist(folder: Path, train: int = 64, held_out: int = 16) -> Path:
    """Random images in MNIST's four files."""
    random = numpy.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", held_out)):
        images = random.integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        labels = random.integers(0, 10, count, dtype=numpy.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(encode(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(encode(labels))
    return folder
