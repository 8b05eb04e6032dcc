"""Digests of tensors that are in this process's memory, by name: 64 bits of SHA-256 each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from amp_launcher.step_record import BYTES

_LARGE = 2**16
"""Bytes from which on another thread hashes a tensor: below, handing it over takes longer."""
_pool: ThreadPoolExecutor | None = None


def of_buffers(buffers: Mapping[str, Any]) -> dict[str, bytes]:
    """A digest of each contiguous buffer of bytes. Large ones are hashed at the same time, one a CPU."""
    global _pool
    large = [name for name, buffer in buffers.items() if memoryview(buffer).nbytes >= _LARGE]
    if large and _pool is None:
        _pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))), thread_name_prefix="digest")
    waiting = {name: _pool.submit(_digest, buffers[name]) for name in large} if _pool and len(large) > 1 else {}
    digests = {name: _digest(buffer) for name, buffer in buffers.items() if name not in waiting}
    return {name: waiting[name].result() if name in waiting else digests[name] for name in buffers}


def of_arrays(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    """The same of NumPy arrays, whatever their layout."""
    return of_buffers({name: array.tobytes() for name, array in arrays.items()})


def of_value(value: object) -> bytes:
    """A digest of a number, a text or None."""
    return _digest(repr(value).encode())


def _digest(buffer: Any) -> bytes:
    return hashlib.sha256(buffer).digest()[:BYTES]
