"""CIFAR-100 files for tests."""

from __future__ import annotations

from pathlib import Path

import numpy


def write_binary(folder: Path, train: int = 50, test: int = 10) -> Path:
    """Random images in the files of the binary version."""
    random = numpy.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.bin", train), ("test.bin", test)):
        records = random.integers(0, 256, (count, 2 + 3072), dtype=numpy.uint8)
        records[:, :2] %= 20
        (folder / name).write_bytes(records.tobytes())
    return folder
