"""CIFAR-100 files for tests."""

from __future__ import annotations

import pickle
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


def write_python(folder: Path, binary: Path) -> Path:
    """The images of binary files in the files of the Python version."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        records = numpy.frombuffer((binary / f"{name}.bin").read_bytes(), numpy.uint8).reshape(-1, 2 + 3072)
        content = {b"data": records[:, 2:].copy(), b"fine_labels": records[:, 1].tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder
