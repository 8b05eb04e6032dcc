"""Image files for tests, in folders."""

from __future__ import annotations

import io
from pathlib import Path

import numpy
from PIL import Image


def encoded(index: int, kind: str = "PNG") -> bytes:
    """A random image, of a size of its own."""
    random = numpy.random.default_rng(index)
    pixels = random.integers(0, 256, (40 + index % 3, 50 + index % 5, 3), dtype=numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_folders(folder: Path, classes: int = 2, train: int = 8, val: int = 2) -> Path:
    """`train` and `val` images of each class, without loss."""
    number = 0
    for part, count in (("train", train), ("val", val)):
        for label in range(classes):
            inside = folder / part / f"n{label:04}"
            inside.mkdir(parents=True)
            for index in range(count):
                (inside / f"{index:03}.png").write_bytes(encoded(number))
                number += 1
    return folder
