"""On what a run in torch runs."""

from __future__ import annotations

import platform

import numpy
import torch

from recipes.trainer.result_fields import nvidia_driver, processor


def device_line(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device}, {torch.cuda.get_device_name(device)}"
    count = torch.get_num_threads()
    return f"cpu, {count} thread{'s' * (count > 1)}"


def versions() -> dict[str, str | None]:
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
    }


def hardware(device: torch.device) -> dict[str, str | None]:
    found: dict[str, str | None] = {"gpu": None, "uuid": None, "driver": None, "cpu": processor()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["uuid"] = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) or None
        found["driver"] = nvidia_driver()
    return found
