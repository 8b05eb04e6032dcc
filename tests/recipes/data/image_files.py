"""Image files for tests, in folders and as TFRecord files."""

from __future__ import annotations

import io
import struct
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
    """`train` and `val` images of each class, without loss, so that TFRecord files of them are the same images."""
    number = 0
    for part, count in (("train", train), ("val", val)):
        for label in range(classes):
            inside = folder / part / f"n{label:04}"
            inside.mkdir(parents=True)
            for index in range(count):
                (inside / f"{index:03}.png").write_bytes(encoded(number))
                number += 1
    return folder


def write_records(folder: Path, of: Path, shards: int = 2) -> Path:
    """The images of `write_folders` as TFRecord files, dealt to the shards in order."""
    folder.mkdir()
    for part, name in (("train", "train"), ("val", "validation")):
        files = sorted((of / part).glob("*/*.png"))
        classes = sorted({path.parent.name for path in files})
        records = [example(path.read_bytes(), 1 + classes.index(path.parent.name)) for path in files]
        framed = [struct.pack("<Q", len(record)) + bytes(4) + record + bytes(4) for record in records]  # no checksums
        size = -(-len(files) // shards)
        for shard in range(shards):
            content = b"".join(framed[shard * size : (shard + 1) * size])
            (folder / f"{name}-{shard:05}-of-{shards:05}").write_bytes(content)
    return folder


def example(image: bytes, label: int) -> bytes:
    """A protocol buffer `Example` of an image and its label."""
    features = _feature(b"image/encoded", 1, field(1, image))
    features += _feature(b"image/class/label", 3, field(1, varint(label)))
    features += _feature(b"image/height", 3, b"\x08" + varint(300))
    return field(1, features)


def _feature(name: bytes, kind: int, values: bytes) -> bytes:
    return field(1, field(1, name) + field(2, field(kind, values)))


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    content = b""
    while value > 0x7F:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])
