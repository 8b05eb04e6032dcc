"""ImageNet in TFRecord files: positions and contents of records, read without TensorFlow.

Format: each record is a protocol buffer `Example` (tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
from amp_launcher import protobuf
from amp_launcher.protobuf import BYTES, VARINT

from . import DataError


def files(folder: Path, part: str) -> list[Path]:
    """The files PART-00000-of-00128 to PART-00127-of-00128, in order.

    Raises `SettingsError` for no files, missing files, and files of several sets.
    """
    pattern = re.compile(rf"{part}-(\d+)-of-(\d+)")
    shards = {path: match for path in sorted(folder.glob(f"{part}-*")) if (match := pattern.fullmatch(path.name))}
    if not shards:
        raise DataError(f"data.dir={folder} has no TFRecord files {part}-*-of-*, as {part}-00000-of-01024")
    counts = {int(match[2]) for match in shards.values()}
    if len(counts) > 1:
        both = " and ".join(f"*-of-{count:05}" for count in sorted(counts))
        raise DataError(f"data.dir={folder} has TFRecord files of several sets: {part} as {both}")
    (count,) = counts
    missing = sorted(set(range(count)) - {int(match[1]) for match in shards.values()})
    if missing:
        raise DataError(
            f"data.dir={folder} lacks {len(missing)} of {count} TFRecord files, the first of them "
            f"{part}-{missing[0]:05}-of-{count:05}",
        )
    return list(shards)


def index(files: Sequence[Path]) -> numpy.ndarray:
    """Positions of the records: int64 of shape [records, 3], with the file's number, the offset and the length.

    Reads lengths only. Raises `SettingsError` for a file that can't be read or ends within a record.
    """
    positions = []
    for number, path in enumerate(files):
        try:
            positions += [(number, *record) for record in protobuf.records(path)]
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{path} is no whole TFRecord file: {error}") from None
    return numpy.array(positions, dtype=numpy.int64).reshape(-1, 3)


def read(path: Path, offset: int, length: int) -> tuple[bytes, int]:
    """The encoded image and the label of a record. Raises `SettingsError` where it has none."""
    with open(path, "rb") as file:
        file.seek(offset)
        record = file.read(length)
    try:
        features = dict(_features(record))
        image, label = features["image/encoded"], features["image/class/label"]
        return protobuf.first(protobuf.first(image, 1), 1), _integer(label)
    except (KeyError, ValueError):
        raise DataError(f"{path} at byte {offset}: no record of image/encoded and image/class/label") from None


def _features(record: bytes) -> Iterator[tuple[str, bytes]]:
    """The names of an `Example`'s features, each with its encoded `Feature`."""
    for features in protobuf.values(record, 1):
        for entry in protobuf.values(features, 1):
            yield protobuf.first(entry, 1).decode(), protobuf.first(entry, 2)


def _integer(feature: bytes) -> int:
    """The first number of an Int64List, packed or not."""
    for number, kind, value in protobuf.fields(protobuf.first(feature, 3)):
        if number == 1 and kind == VARINT:
            return int(value)
        if number == 1 and kind == BYTES:
            return protobuf.varint(bytes(value), 0)[0]
    raise ValueError("an empty list")
