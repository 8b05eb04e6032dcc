"""GPUs by NVIDIA's management library, which leaves CUDA alone: a script may still choose its GPUs, or fork."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

import torch

from amp_launcher.typed import SettingsError


def device_and_capability(name: str, environ: Mapping[str, str]) -> tuple[torch.device, tuple[int, int] | None]:
    """The device that `name` (auto, cpu or cuda) means for this process, and a GPU's compute capability.

    The capability is None for a CPU and where the library can't tell it. Raises `SettingsError` for a device that isn't
    there.
    """
    count = 0 if name == "cpu" else _count()
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu"), None
    if name not in ("auto", "cuda"):
        raise SettingsError(f"device={name} is not one of cpu, cuda")
    if not count:
        raise SettingsError("device=cuda: torch sees no CUDA GPU here; say device=cpu")
    index = int(environ.get("LOCAL_RANK", "0"))
    if index >= count:
        raise SettingsError(f"device=cuda:{index}: torch sees {count} GPUs here")
    return torch.device("cuda", index), _capability(index)


def _count() -> int:
    """GPUs that torch could use."""
    if not torch.backends.cuda.is_built():
        return 0
    count = torch.cuda._device_count_nvml() if torch.version.cuda else -1
    return torch.cuda.device_count() if count < 0 else count


def _capability(index: int) -> tuple[int, int] | None:
    """Compute capability of the visible GPU with this number."""
    visible = torch.cuda._parse_visible_devices()
    if index >= len(visible) or not torch.version.cuda:
        return None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlInit_v2() != 0:
        return None
    try:
        if isinstance(visible[index], int):
            failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(visible[index]), ctypes.byref(handle))
        else:
            failed = library.nvmlDeviceGetHandleByUUID(os.fsencode(visible[index]), ctypes.byref(handle))
        failed = failed or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        return None if failed else (major.value, minor.value)
    finally:
        library.nvmlShutdown()
