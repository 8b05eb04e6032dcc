"""Frames on a byte stream: a letter, a length of four bytes, and so many bytes.

    J  a JSON object: a request, an answer, an error, a note
    B  bytes that belong to the request or answer around them
    K  a sign of life, with nothing in it

Both sides use this module, so it imports the standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

HEADER = struct.Struct(">cI")
MAX_FRAME = 64 * 2**20
CHUNK = 2**18
"""Bytes in a frame of a longer transfer."""
ALIVE = HEADER.pack(b"K", 0)


class Garbled(Exception):
    """What came is no frame: something else writes on the channel."""


class Ended(Exception):
    """The other side is gone."""


def pack(value: Any) -> bytes:
    """A frame with a JSON object."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return HEADER.pack(b"J", len(text)) + text


def packed_bytes(data: bytes) -> Iterator[bytes]:
    """Frames that carry these bytes."""
    for start in range(0, len(data), CHUNK):
        part = data[start : start + CHUNK]
        yield HEADER.pack(b"B", len(part)) + part


def receive(read: Callable[[int], bytes]) -> Any:
    """The next frame that says something: a decoded object or bytes. `read(n)` gives exactly n bytes, or raises."""
    while True:
        kind, length = HEADER.unpack(read(HEADER.size))
        if kind not in (b"J", b"B", b"K") or length > MAX_FRAME:
            raise Garbled(f"a frame can't begin with {kind!r} and {length} bytes")
        content = read(length) if length else b""
        if kind == b"K":
            continue
        if kind == b"B":
            return content
        try:
            return json.loads(content)
        except ValueError as error:
            raise Garbled(str(error)) from None
