"""ImageNet in TFRecord files: positions and contents of records, read without TensorFlow.

Formats: a TFRecord file is records of an 8-byte length, its checksum, the bytes, their checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord); each record is a protocol buffer `Example`
(tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy

from recipes.typed import SettingsError

HEADER, TRAILER = 12, 4
_BYTES, _VARINT = 2, 0


def files(folder: Path, part: str) -> list[Path]:
    """The files PART-00000-of-00128 to PART-00127-of-00128, in order.

    Raises `SettingsError` for no files, missing files, and files of several sets.
    """
    pattern = re.compile(rf"{part}-(\d+)-of-(\d+)")
    shards = {path: match for path in sorted(folder.glob(f"{part}-*")) if (match := pattern.fullmatch(path.name))}
    if not shards:
        raise SettingsError(
            f"data.dir={folder} has no TFRecord files {part}-*-of-*, as {part}-00000-of-01024", "data.dir"
        )
    counts = {int(match[2]) for match in shards.values()}
    if len(counts) > 1:
        both = " and ".join(f"*-of-{count:05}" for count in sorted(counts))
        raise SettingsError(f"data.dir={folder} has TFRecord files of several sets: {part} as {both}", "data.dir")
    (count,) = counts
    missing = sorted(set(range(count)) - {int(match[1]) for match in shards.values()})
    if missing:
        raise SettingsError(
            f"data.dir={folder} lacks {len(missing)} of {count} TFRecord files, the first of them "
            f"{part}-{missing[0]:05}-of-{count:05}",
            "data.dir",
        )
    return list(shards)


def index(files: Sequence[Path]) -> numpy.ndarray:
    """Positions of the records: int64 of shape [records, 3], with the file's number, the offset and the length.

    Reads lengths only. Raises `SettingsError` for a file that can't be read or ends within a record.
    """
    positions = []
    for number, path in enumerate(files):
        try:
            positions += [(number, *record) for record in _records(path)]
        except OSError as error:
            raise SettingsError(f"{path} can't be read: {error.strerror}", "data.dir") from None
    return numpy.array(positions, dtype=numpy.int64).reshape(-1, 3)


def _records(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and length of each record."""
    size, position = path.stat().st_size, 0
    with open(path, "rb") as file:
        while position < size:
            header = file.read(HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER else size
            end = position + HEADER + length + TRAILER
            if end > size:
                raise SettingsError(f"{path} is no whole TFRecord file: it breaks off at byte {position}", "data.dir")
            yield position + HEADER, length
            file.seek(end)
            position = end


def read(path: Path, offset: int, length: int) -> tuple[bytes, int]:
    """The encoded image and the label of a record. Raises `SettingsError` where it has none."""
    with open(path, "rb") as file:
        file.seek(offset)
        record = file.read(length)
    try:
        features = dict(_features(record))
        image, label = features["image/encoded"], features["image/class/label"]
        return _first(_first(image, 1), 1), _integer(label)
    except (KeyError, IndexError, ValueError):
        raise SettingsError(
            f"{path} at byte {offset}: no record of image/encoded and image/class/label", "data.dir"
        ) from None


def _features(record: bytes) -> Iterator[tuple[str, bytes]]:
    """The names of an `Example`'s features, each with its encoded `Feature`."""
    for features in _values(record, 1):
        for entry in _values(features, 1):
            yield _first(entry, 1).decode(), _first(entry, 2)


def _integer(feature: bytes) -> int:
    """The first number of an Int64List, packed or not."""
    for number, kind, value in _fields(_first(feature, 3)):
        if number == 1:
            return int(value) if kind == _VARINT else _varint(bytes(value), 0)[0]  # type: ignore[arg-type, call-overload]
    raise ValueError("an empty list")


def _first(message: bytes, wanted: int) -> bytes:
    for value in _values(message, wanted):
        return value
    raise ValueError(f"there is no field {wanted}")


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
