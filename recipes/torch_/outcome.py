"""result.json for a run in torch: what was asked, what it became, and on what it ran."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

from recipes.settings import Settings
from recipes.torch_.precision import Precision


def requested(settings: Settings) -> dict[str, Any]:
    """The mode as it was asked for."""
    return {
        "amp": settings.amp.level,
        "dtype": settings.amp.dtype,
        "loss_scale": settings.loss_scale.mode,
        "xla": settings.xla,
        "compile": settings.compile,
        "tf32": settings.tf32,
        "batch": settings.batch,
        "accumulate": settings.accumulate,
        "deterministic": settings.deterministic,
        "device": settings.device,
    }


def effective(settings: Settings, precision: Precision, deterministic: bool) -> dict[str, Any]:
    """The same keys with every `auto` and null resolved."""
    return {
        **requested(settings),
        "dtype": str(precision.dtype).removeprefix("torch."),
        "loss_scale": precision.loss_scale.mode,
        "tf32": precision.tf32,
        "deterministic": deterministic,
        "device": precision.device.type,
    }


def mode_lines(settings: Settings, precision: Precision) -> list[str]:
    """What runs, for people: the level, and why each `auto` became what it is."""
    dtype, scale = str(precision.dtype).removeprefix("torch."), precision.loss_scale
    why = ""
    if settings.amp.level != "o0" and settings.amp.dtype == "auto":
        why = f" (amp.dtype=auto, {_device_reason(precision.device)})"
    if scale.mode == "none":
        scaling = "no loss scale"
        if settings.loss_scale.mode == "auto":
            scaling += f" (loss_scale=auto, {_scale_reason(precision)})"
    else:
        scaling = f"{scale.mode} loss scale from {scale.init:g}"
        if settings.loss_scale.mode == "auto":
            scaling += f" (loss_scale=auto, {dtype})"
    how = f" by {precision.mechanism}" if settings.amp.level != "o0" else ""
    lines = [f"amp={settings.amp.level}: {dtype}{how}{why}, {scaling}"]
    if precision.device.type == "cuda":
        lines.append(f"float32 products in {'TF32' if precision.tf32 else 'IEEE float32'}")
    return lines


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
    found: dict[str, str | None] = {"gpu": None, "uuid": None, "driver": None, "cpu": _processor()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["uuid"] = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) or None
        found["driver"] = _first_line(Path("/sys/module/nvidia/version"))
    return found


def digests(plan: Mapping[str, Any], data: str) -> dict[str, str | None]:
    """Code, and the image as its runtime is told it, from the plan; null where there is no plan or no container."""
    container = plan.get("container") or {}
    return {"code": plan.get("code"), "image": container.get("image"), "data": data}


def _device_reason(device: torch.device) -> str:
    if device.type == "cpu":
        return "on a CPU"
    major, minor = torch.cuda.get_device_capability(device)
    return f"compute capability {major}.{minor}"


def _scale_reason(precision: Precision) -> str:
    if precision.dtype != torch.float16:
        return f"{str(precision.dtype).removeprefix('torch.')} needs none"
    return "there are no float32 gradients to unscale into"


def _processor() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
