"""Scalars in TensorBoard's event files, which are TFRecord files of protocol buffers `Event`.

Formats: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto and tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from amp_launcher import protobuf
from amp_launcher.protobuf import BYTES, FIXED32, VARINT

PREFIX = "events.out.tfevents."
"""Start of the names of event files."""
LARGEST_EVENT = 4096
"""Largest size of an event that is read, in bytes: larger ones are images, histograms and texts."""
LARGEST = 8 << 20
"""Largest size of the events that are read, with their frames, in bytes: some 100,000 scalars."""
LARGEST_STEP = 1 << 53
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_CONTENT, _FLOAT_VALUES = 1, 4, 5
_FLOAT = 1


def read(paths: Iterable[Path]) -> dict[int, dict[str, float]]:
    """The scalars of these files by step and tag, a later one in place of an earlier one; steps are the writer's.

    Raises `OSError`, and `ValueError` for files that are damaged or too large.
    """
    steps: dict[int, dict[str, float]] = {}
    size = 0
    for path in paths:
        for content in _events(path):
            size += protobuf.HEADER + len(content) + protobuf.TRAILER
            if size > LARGEST:
                raise ValueError(f"{path} has too many events")
            step, summaries = 0, []  # a step of 0 is not written
            for number, kind, value in protobuf.fields(content):
                if (number, kind) == (_STEP, VARINT):
                    step = value
                elif (number, kind) == (_SUMMARY, BYTES):
                    summaries.append(value)
            scalars = {tag: value for summary in summaries for tag, value in _scalars(summary)}
            if scalars and step < LARGEST_STEP:
                steps.setdefault(step, {}).update(scalars)
    return dict(sorted(steps.items()))


def _events(path: Path) -> Iterator[bytes]:
    """Each event, a large one as no bytes. An incomplete last event is left out."""
    records = protobuf.records(path)
    with open(path, "rb") as file:
        while True:
            try:
                offset, length = next(records)
            except (StopIteration, ValueError):  # the writer was killed, or hasn't ended
                return
            file.seek(offset)
            yield file.read(length) if length <= LARGEST_EVENT else b""


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Tags and values of a `Summary`."""
    for message in protobuf.values(summary, _VALUE):
        tag, scalar = "", None
        for number, kind, value in protobuf.fields(message):
            if (number, kind) == (_TAG, BYTES):
                tag = value.decode("utf-8", errors="replace")
            elif (number, kind) == (_SIMPLE_VALUE, FIXED32):
                scalar = value
            elif (number, kind) == (_TENSOR, BYTES):
                scalar = _of_tensor(value)
        if scalar is not None:
            yield tag, struct.unpack("<f", scalar)[0]


def _of_tensor(tensor: bytes) -> bytes | None:
    """The four bytes of a `TensorProto` of one float32; None for other tensors."""
    content, is_float = b"", False
    for number, kind, value in protobuf.fields(tensor):
        if (number, kind) == (_TENSOR_TYPE, VARINT):
            is_float = value == _FLOAT
        elif (number, kind) in {(_TENSOR_CONTENT, BYTES), (_FLOAT_VALUES, BYTES), (_FLOAT_VALUES, FIXED32)}:
            content += value
    return content if is_float and len(content) == 4 else None
