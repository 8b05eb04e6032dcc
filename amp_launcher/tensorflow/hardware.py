"""TensorFlow's device, and what the result says of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.typed import SettingsError
from amp_launcher.world.device import Device


def kind_of(device: str) -> str:
    """cpu or cuda, for auto, cpu or cuda."""
    if device != "auto":
        return device
    return "cuda" if tf.config.list_physical_devices("GPU") else "cpu"


def capability_of(device: str) -> tuple[int, int] | None:
    """The least compute capability of the GPUs that TensorFlow sees, None for a CPU.

    Raises `SettingsError` for a device that isn't there.
    """
    if device == "cpu":
        return None
    if device != "cuda":
        raise SettingsError(f"device={device} is not one of cpu, cuda")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise SettingsError("device=cuda: TensorFlow sees no CUDA GPU here; say device=cpu")
    details = (tf.config.experimental.get_device_details(gpu) for gpu in gpus)
    return min((gpu["compute_capability"] for gpu in details if gpu.get("compute_capability")), default=None)


def threads() -> int:
    """Threads of one operation: as set for TensorFlow, else one for each CPU of this process."""
    return tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))


class TensorFlowDevice(Device):
    """TensorFlow has no events on a GPU's time line, so that a mark waits for the device. With `steps_per_execution`
    there are fewer marks."""

    def __init__(self, kind: str, devices: int = 1) -> None:
        """`devices` is the number of devices over all processes."""
        super().__init__(kind)
        self._devices = devices

    def wait(self) -> None:
        tf.test.experimental.sync_devices()

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        numbers: list[Any] = []
        for value, steps in zip(values, count, strict=True):
            numbers += [None] * steps if value is None else value.numpy().tolist()
        return numbers

    def gpu_memory(self) -> int:
        gpus = tf.config.list_logical_devices("GPU")
        return max(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(len(gpus)))

    def reset_gpu_memory(self) -> None:
        for index in range(len(tf.config.list_logical_devices("GPU"))):
            tf.config.experimental.reset_memory_stats(f"GPU:{index}")

    def gpu_name(self) -> str:
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
        return str(details.get("device_name", "GPU"))

    def where(self) -> str:
        count = threads()
        device = f"cpu, {count} thread{'s' * (count > 1)}"
        if self.kind == "cuda":
            device = f"{self._devices} x {self.gpu_name()}" if self._devices > 1 else f"cuda, {self.gpu_name()}"
        return f"tensorflow {tf.__version__}, keras {keras.__version__} on {device}"

    def framework_versions(self) -> dict[str, str | None]:
        build = tf.sysconfig.get_build_info()
        return {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "cuda": build.get("cuda_version"),
            "cudnn": build.get("cudnn_version"),
        }
