"""The device of this process, and what precision needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from amp_launcher.typed import SettingsError


def device_from(name: str, environ: Mapping[str, str]) -> torch.device:
    """The device that `name` (auto, cpu or cuda) means for this process: a GPU by torchrun's LOCAL_RANK.

    Raises `SettingsError` for a name that torch doesn't know.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return torch.device("cuda", int(environ.get("LOCAL_RANK", "0")))
    try:
        return torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device={name} is not one of auto, cpu, cuda, cuda:0, ...") from None


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Compute capability of a GPU, None for a CPU. Raises `SettingsError` for a device that isn't there."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise SettingsError(f"device={device.type} is not one of cpu, cuda")
    if not torch.cuda.is_available():
        raise SettingsError("device=cuda: torch sees no CUDA GPU here; say device=cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise SettingsError(f"device={device}: torch sees {torch.cuda.device_count()} GPUs here")
    return torch.cuda.get_device_capability(device)
