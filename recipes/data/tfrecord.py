"""ImageNet as TFRecord files: where each record lies, and what one holds. No TensorFlow is needed.

Formats: a TFRecord file is records of an 8-byte length, its checksum, the bytes, their checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord); each record is a protocol buffer `Example`
(tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy

from recipes.typed import SettingsError

HEADER, TRAILER = 12, 4
_BYTES, _VARINT = 2, 0


def index(files: Sequence[Path]) -> numpy.ndarray:
    """Where the records lie: int64 of shape [records, 3], each the number of its file, its offset and its length.

    Only lengths are read. Raises `SettingsError` for a file whose records don't end where it ends.
    """
    found = []
    for number, path in enumerate(files):
        size, position = path.stat().st_size, 0
        with open(path, "rb") as file:
            while position < size:
                header = file.read(HEADER)
                length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER else size
                end = position + HEADER + length + TRAILER
                if end > size:
                    raise SettingsError(
                        f"{path} is no whole TFRecord file: it breaks off at byte {position}", "data.dir"
                    )
                found.append((number, position + HEADER, length))
                file.seek(end)
                position = end
    return numpy.array(found, dtype=numpy.int64).reshape(-1, 3)


def read(path: Path, offset: int, length: int) -> tuple[bytes, int]:
    """The encoded image of a record and its label as written. Raises `SettingsError` where it holds no such thing."""
    with open(path, "rb") as file:
        file.seek(offset)
        record = file.read(length)
    try:
        features = dict(_features(record))
        image, label = features["image/encoded"], features["image/class/label"]
        return next(_values(next(_values(image, 1)), 1)), _integer(label)
    except (KeyError, IndexError, StopIteration, ValueError):
        raise SettingsError(
            f"{path} at byte {offset}: no record of image/encoded and image/class/label", "data.dir"
        ) from None


def _features(record: bytes) -> Iterator[tuple[str, bytes]]:
    """The names of an `Example`'s features, each with its encoded `Feature`."""
    for features in _values(record, 1):
        for entry in _values(features, 1):
            yield next(_values(entry, 1)).decode(), next(_values(entry, 2))


def _integer(feature: bytes) -> int:
    """The first number of an Int64List, packed or not."""
    for number, kind, value in _fields(next(_values(feature, 3))):
        if number == 1:
            return int(value) if kind == _VARINT else _varint(bytes(value), 0)[0]  # type: ignore[arg-type, call-overload]
    raise ValueError("an empty list")


def _values(message: bytes, wanted: int) -> Iterator[bytes]:
    """The values of a message's length-delimited field of that number."""
    for number, kind, value in _fields(message):
        if number == wanted and kind == _BYTES:
            yield value  # type: ignore[misc]


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Field number, wire type and value of each field."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, kind, value
        elif kind == _BYTES:
            length, position = _varint(message, position)
            if position + length > len(message):
                raise ValueError("it breaks off")
            yield tag >> 3, kind, message[position : position + length]
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError("not a protocol buffer")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
