"""A submission as one compressed text of bytes: a line of JSON, then the contents of the files that it lists."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any


def packed(message: Mapping[str, Any], code: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> bytes:
    listed = {
        **message,
        "code": [[name, len(content)] for name, content in code.items()],
        "secrets": [[name, len(content)] for name, content in secrets.items()],
    }
    return zlib.compress(b"".join([json.dumps(listed).encode(), b"\n", *code.values(), *secrets.values()]), 6)


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, bytes], dict[str, bytes]]:
    """Message, code, secrets."""
    data = zlib.decompress(data)
    start = data.index(b"\n") + 1
    message = json.loads(data[:start])
    parts: list[dict[str, bytes]] = []
    for key in ("code", "secrets"):
        contents = {}
        for name, size in message.pop(key):
            contents[name] = data[start : start + size]
            start += size
        parts.append(contents)
    return message, parts[0], parts[1]
