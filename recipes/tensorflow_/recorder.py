"""Time and memory of TensorFlow's device while steps are recorded.

TensorFlow has no events on a GPU's time line, so that a mark waits for the device. With `steps_per_execution` there are
fewer marks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from recipes.trainer.recorder import resident_memory


class TensorFlowDevice:
    """`recipes.trainer.recorder.Device` in TensorFlow."""

    def __init__(self, kind: str) -> None:
        self._cuda = kind == "cuda"

    def mark(self) -> float:
        if self._cuda:
            tf.test.experimental.sync_devices()
        return time.perf_counter()

    def seconds(self, began: float, ended: float) -> float:
        return ended - began

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        numbers: list[Any] = []
        for value, steps in zip(values, count, strict=True):
            numbers += [None] * steps if value is None else value.numpy().tolist()
        return numbers

    def peak_memory(self) -> int:
        if not self._cuda:
            return resident_memory()
        gpus = tf.config.list_logical_devices("GPU")
        return max(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(len(gpus)))
