"""TFRecord files and the protocol buffers in them, read with the standard library only.

Formats: a TFRecord file is records of an 8-byte length, its checksum, the bytes, their checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord); checksums are not verified. A protocol buffer is fields of a
number, a wire type and a value (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, TRAILER = 12, 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def records(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and length of each record; only lengths are read. Raises `ValueError` where the file ends within one."""
    with open(path, "rb") as file:
        size, position = file.seek(0, 2), file.seek(0)
        while position < size:
            header = file.read(HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER else size
            end = position + HEADER + length + TRAILER
            if end > size:
                raise ValueError(f"it breaks off at byte {position}")
            yield position + HEADER, length
            file.seek(end)
            position = end


def first(message: bytes, wanted: int) -> bytes:
    """The first value of a length-delimited field. Raises `ValueError` where there is none."""
    for value in values(message, wanted):
        return value
    raise ValueError(f"there is no field {wanted}")


def values(message: bytes, wanted: int) -> Iterator[bytes]:
    """The values of a length-delimited field."""
    for number, kind, value in fields(message):
        if number == wanted and kind == BYTES:
            yield value


def fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field: an int for `VARINT`, else bytes. Raises `ValueError`."""
    position = 0
    while position < len(message):
        tag, position = varint(message, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = varint(message, position)
            yield tag >> 3, kind, value
            continue
        if kind == BYTES:
            length, position = varint(message, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError("not a protocol buffer")
        if position + length > len(message):
            raise ValueError("it breaks off")
        yield tag >> 3, kind, message[position : position + length]
        position += length


def varint(message: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at this position, and the position after it. Raises `ValueError`."""
    if position < len(message) and message[position] < 0x80:  # as most are
        return message[position], position + 1
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("it breaks off, or has an integer of more than 10 bytes")
