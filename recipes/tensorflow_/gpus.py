"""TensorFlow's GPUs: what they can do."""

from __future__ import annotations

import tensorflow as tf

from recipes.typed import SettingsError


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
    found = [tf.config.experimental.get_device_details(each).get("compute_capability") for each in gpus]
    return min((each for each in found if each is not None), default=None)
