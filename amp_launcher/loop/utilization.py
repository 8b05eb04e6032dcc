"""Model FLOPs utilization (MFU): the arithmetic that a model needs, as a share of what the devices could do.

Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), section 4.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amp_launcher.precision.gemm import HALF

_HALF = ("float16", "bfloat16")
_AMPERE = {"float32": 19.5, "tf32": 156.0, **dict.fromkeys(_HALF, 312.0)}
_HOPPER = {"float32": 67.0, "tf32": 494.7, **dict.fromkeys(_HALF, 989.4)}
_HOPPER_PCIE = {"float32": 51.0, "tf32": 378.0, **dict.fromkeys(_HALF, 756.0)}
_HOPPER_NVL = {"float32": 60.0, "tf32": 417.5, **dict.fromkeys(_HALF, 835.5)}
_RTX_PRO_6000 = {  # these tensor cores do twice and four times the arithmetic of float32
    edition: {"float32": peak, "tf32": 2 * peak, **dict.fromkeys(_HALF, 4 * peak)}
    for edition, peak in (("Server", 120.0), ("Workstation", 125.0), ("Max-Q Workstation", 110.0))
}
PEAKS: Mapping[str, Mapping[str, float]] = {
    "Tesla T4": {"float32": 8.1, "float16": 65.0},
    "Tesla V100-PCIE-": {"float32": 14.0, "float16": 112.0},
    "Tesla V100-SXM2-": {"float32": 15.7, "float16": 125.0},
    "NVIDIA A100-": _AMPERE,
    "NVIDIA A100 ": _AMPERE,
    "NVIDIA L40S": {"float32": 91.6, "tf32": 183.0, **dict.fromkeys(_HALF, 362.05)},
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H100 PCIe": _HOPPER_PCIE,
    "NVIDIA H100 NVL": _HOPPER_NVL,
    "NVIDIA H200 NVL": _HOPPER_NVL,
    "NVIDIA H200": _HOPPER,
    "NVIDIA GH200 ": _HOPPER,
    "NVIDIA B200": {"float32": 75.0, "tf32": 1100.0, **dict.fromkeys(_HALF, 2250.0)},
    "NVIDIA GB200": {"float32": 80.0, "tf32": 1250.0, **dict.fromkeys(_HALF, 2500.0)},
    **{f"NVIDIA RTX PRO 6000 Blackwell {edition}": peaks for edition, peaks in _RTX_PRO_6000.items()},
}
"""How a GPU's name begins -> dense peak in TFLOP/s, without sparsity, by dtype of the operands; the longest beginning
counts. Source: NVIDIA's data sheets of these cards. Those of B200 and GB200 ("Blackwell", the figures of one GPU at
1,000 W and at 1,200 W) and GH200 give figures with sparsity, which are twice these. Those of RTX PRO 6000 give float32,
and the whitepaper "NVIDIA RTX Blackwell GPU Architecture" the ratios."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWork:
    """The work of one sample of text."""

    per_sample: int
    """Tokens."""
    flops: int
    """Floating-point operations that the model needs for one token, forward and backward."""


def peak(gpu: str | None, dtype: str) -> float | None:
    """Dense peak of one GPU in FLOP/s; None where it isn't known, as for a part of a GPU or a CPU."""
    if gpu is None or "MIG" in gpu:
        return None
    names = [name for name in PEAKS if gpu.startswith(name)]
    teraflops = PEAKS[max(names, key=len)].get(dtype) if names else None
    return None if teraflops is None else teraflops * 1e12


def matrix_share(flops: int | None, seconds: float | None, gpu: str | None) -> float | None:
    """The share of a step's `seconds` that its matrix products, of so many FLOPs on one device, would take in float32
    at the GPU's peak, from 0 to 1: more than that can't be gained by doing them in a narrower format. None where one of
    the three isn't known."""
    most = peak(gpu, "float32")
    return min(1.0, flops / most / seconds) if flops is not None and seconds and most else None


def utilization(
    tokens_per_second: float | None, work: TokenWork, gpu: str | None, dtype: str, devices: int, gemm: str = HALF
) -> float | None:
    """From 0 to 1, over all devices; None where the rate or the peak isn't known, and under `amp.gemm`: products in two
    formats have two peaks, and no share of one of them is well defined."""
    if gemm != HALF:
        return None
    most = peak(gpu, dtype)
    if most is None or tokens_per_second is None:
        return None
    return tokens_per_second * work.flops / (most * devices)
