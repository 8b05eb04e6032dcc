"""Which float32 the matrix units use: IEEE's, or TF32 with its 10-bit mantissa.

From torch 2.9 there are `fp32_precision` switches. Only one of the two kinds is ever set: once a new one was, reading
the older `allow_tf32` raises.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from recipes.typed import SettingsError

NEEDS = (8, 0)
"""First compute capability with TF32: NVIDIA's Ampere."""

READS_NEW_SWITCHES = "2.13"
"""torch.compile read `allow_tf32` up to some release after 2.9, and so failed where the new switches were set
(pytorch issue 166387); in this one it doesn't."""


def resolve_tf32(
    tf32: bool | None, level: str, device: str, capability: tuple[int, int] | None, environ: Mapping[str, str]
) -> bool:
    """Whether TF32 is on: as asked, else off at o0 and on elsewhere, where the device has it.

    `device` is cpu or cuda; `capability` the GPU's compute capability. Raises `SettingsError` where TF32 was asked for
    and can't be had.
    """
    if device == "cpu":
        why = "a CPU has no TF32"
    elif capability is not None and capability < NEEDS:
        why = f"TF32 needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    elif environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        why = "NVIDIA_TF32_OVERRIDE=0 in the environment switches TF32 off"
    else:
        return level != "o0" if tf32 is None else tf32
    if tf32:
        raise SettingsError(f"tf32=true: {why}; say tf32=false", "tf32")
    return False


def has_new_switches() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


def switch_tf32(on: bool, compile: bool = False) -> None:
    """Set TF32 for matrix products, convolutions and RNNs on CUDA, for the whole process.

    `compile` says that torch.compile is going to be used.
    """
    if has_new_switches() and not (compile and torch.__version__ < READS_NEW_SWITCHES):
        precision = "tf32" if on else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision
        torch.backends.cudnn.rnn.fp32_precision = precision
    else:
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on
