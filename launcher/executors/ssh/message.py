"""What is sent for a submission besides the code: plans as compressed JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any


def packed(message: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(message).encode(), 6)


def unpacked(data: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(zlib.decompress(data))
    return message
