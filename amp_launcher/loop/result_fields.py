"""result.json's parts: what was asked, what it became, on what it ran, how fast. Most are a script's, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_launcher.loop.utilization import TokenWork, matrix_share, utilization
from amp_launcher.metrics import Summary
from amp_launcher.precision.gemm import FORMATS, HALF
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.settings import Settings


def requested(settings: Settings) -> dict[str, Any]:
    """The mode as it was asked for."""
    return {
        "amp": settings.amp.level,
        "dtype": settings.amp.dtype,
        "gemm": settings.amp.gemm,
        "loss_scale": settings.loss_scale.mode,
        "xla": settings.xla,
        "compile": settings.compile,
        "parallel": settings.parallel,
        "tf32": settings.tf32,
        "batch": settings.batch,
        "accumulate": settings.accumulate,
        "deterministic": settings.deterministic,
        "device": settings.device,
        "proof_share": settings.proof.share,
    }


def effective(settings: Settings, precision: ResolvedPrecision, deterministic: bool) -> dict[str, Any]:
    """The same keys with every `auto` and null resolved."""
    return {
        **requested(settings),
        "dtype": precision.dtype,
        "loss_scale": precision.loss_scale.mode,
        "parallel": precision.parallel if precision.framework == "torch" else None,
        "tf32": precision.tf32,
        "deterministic": deterministic,
        "device": precision.device,
    }


def mode_lines(settings: Settings, precision: ResolvedPrecision) -> list[str]:
    """The mode in words: the level, and the reason for the value of each `auto`."""
    scale, why = precision.loss_scale, ""
    if settings.amp.level != "o0" and settings.amp.dtype == "auto":
        why = f" (amp.dtype=auto, {_device_reason(precision)})"
    if scale.mode == "none":
        scaling = "no loss scale"
        if settings.loss_scale.mode == "auto":
            scaling += f" (loss_scale=auto, {_scale_reason(precision)})"
    else:
        scaling = f"{scale.mode} loss scale from {scale.init:g}"
        if settings.loss_scale.mode == "auto":
            scaling += f" (loss_scale=auto, {precision.dtype})"
    how = f" by {precision.mechanism}" if settings.amp.level != "o0" else ""
    if precision.gemm != HALF:
        why += f", linear layers in {precision.gemm} by {FORMATS[precision.gemm].by}"
    lines = [f"amp={settings.amp.level}: {precision.dtype}{how}{why}, {scaling}"]
    if precision.device == "cuda":
        kinds = {True: "in TF32", False: "in IEEE float32", None: "by the script's own TF32 switches"}
        lines.append(f"float32 products {kinds[precision.tf32]}")
    return lines


def digests(plan: Mapping[str, Any], data: str | None) -> dict[str, str | None]:
    """Code, and the image by its digest in the engine's store, or else by its name, from the plan; null where there is
    no plan or no container."""
    container = plan.get("container") or {}
    return {"code": plan.get("code"), "image": container.get("identity") or container.get("image"), "data": data}


def throughput(
    summary: Summary,
    step_flops: int | None,
    work: TokenWork | None,
    mode: ResolvedPrecision,
    gpu: str | None,
    devices: int,
) -> dict[str, Any]:
    """Steps' rate, and the share of the peak that they reach; `work` is for samples of text."""
    rate = summary.throughput()
    share = matrix_share(step_flops, summary.step_seconds, gpu)
    if share is not None:
        rate["matrix_share"] = share
    if work is None:
        return rate
    dtype = "tf32" if mode.dtype == "float32" and mode.tf32 else mode.dtype
    mfu = utilization(rate["mean"], work, gpu, dtype, devices, mode.gemm)
    return {**rate, "unit": "tokens/s", "mfu": mfu, "flops_per_token": work.flops}


def _device_reason(precision: ResolvedPrecision) -> str:
    if precision.device == "cpu":
        return "on a CPU"
    if precision.capability is None:
        return "compute capability unknown"
    return f"compute capability {precision.capability[0]}.{precision.capability[1]}"


def _scale_reason(precision: ResolvedPrecision) -> str:
    if precision.dtype != "float16":
        return f"{precision.dtype} needs none"
    return "there are no float32 gradients to unscale into"
