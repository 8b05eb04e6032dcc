"""The hardware of a run in TensorFlow."""

from __future__ import annotations

import os
import platform

import keras
import numpy
import tensorflow as tf

from recipes.trainer.result_fields import nvidia_driver, processor
from recipes.typed import SettingsError


def device_name(kind: str) -> str | None:
    """The GPU's name, None on a CPU."""
    if kind != "cuda":
        return None
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return details.get("device_name", "GPU")


def capability_of(device: str) -> tuple[int, int] | None:
    """The least compute capability of the GPUs that TensorFlow sees, None for a CPU.

    Raises `SettingsError` for a device that isn't there.
    """
    if device == "cpu":
        return None
    if device != "cuda":
        raise SettingsError(f"device={device} is not one of cpu, cuda", "device")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise SettingsError("device=cuda: TensorFlow sees no CUDA GPU here; say device=cpu", "device")
    details = (tf.config.experimental.get_device_details(gpu) for gpu in gpus)
    return min((gpu["compute_capability"] for gpu in details if gpu.get("compute_capability")), default=None)


def threads() -> int:
    """Threads of one operation: as set for TensorFlow, else one for each CPU of this process."""
    return tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))


def device_line(kind: str, devices: int) -> str:
    if kind == "cuda":
        return f"{devices} x {device_name(kind)}" if devices > 1 else f"cuda, {device_name(kind)}"
    count = threads()
    return f"cpu, {count} thread{'s' * (count > 1)}"


def versions() -> dict[str, str | None]:
    build = tf.sysconfig.get_build_info()
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": numpy.__version__,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }


def hardware(kind: str) -> dict[str, str | None]:
    gpu = device_name(kind)
    return {"gpu": gpu, "uuid": None, "driver": nvidia_driver() if gpu else None, "cpu": processor()}
