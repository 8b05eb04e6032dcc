"""Frames on a byte stream: a letter, a length of four bytes, and so many bytes.

    J  a JSON object: a request, an answer, an error, a note
    B  bytes that belong to the request or answer around them
    K  a heartbeat, empty

It bounds frames and takes JSON without NaN or unlimited nesting; the caller checks their content.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from launcher.admit import Refused

HEADER = struct.Struct(">cI")
MAX_FRAME = 64 * 2**20
CHUNK = 2**18
"""Bytes in a frame of a longer transfer."""
ALIVE = HEADER.pack(b"K", 0)


class Ended(Exception):
    """The other side closed the stream."""


def pack(value: Any) -> bytes:
    """A frame with a JSON object."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return HEADER.pack(b"J", len(text)) + text


def packed_bytes(data: bytes) -> Iterator[bytes]:
    """Frames that carry these bytes."""
    for start in range(0, len(data), CHUNK):
        part = data[start : start + CHUNK]
        yield HEADER.pack(b"B", len(part)) + part


def receive(read: Callable[[int], bytes], longest: int = MAX_FRAME) -> Any:
    """The next frame that is no heartbeat: bytes, or a decoded object of at most `longest` bytes. `read(n)` returns
    exactly n bytes, or raises. Raises `Refused`."""
    most = {b"J": longest, b"B": CHUNK, b"K": 0}
    while True:
        kind, length = HEADER.unpack(read(HEADER.size))
        if kind not in most:
            raise Refused(f"a frame can't begin with {kind!r}")
        if length > most[kind]:
            raise Refused(f"a frame of {length} bytes is longer than the limit of {most[kind]}")
        if kind == b"K":
            continue
        if not length:
            raise Refused("a frame is empty")
        content = read(length)
        if kind == b"B":
            return content
        try:
            return json.loads(content, parse_constant=_refused)
        except (ValueError, RecursionError) as error:
            raise Refused(f"a frame is not JSON: {error}") from None


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
