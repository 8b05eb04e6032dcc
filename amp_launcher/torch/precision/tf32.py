"""Which float32 the matrix units use: IEEE's, or TF32 with its 10-bit mantissa.

From torch 2.9 there are `fp32_precision` switches too. Once one of those was set, reading the older `allow_tf32` may
raise, as `torch.backends.cudnn.flags` and libraries do; the older setters leave both readable.
"""

from __future__ import annotations

import torch


def has_new_switches() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


def switch_tf32(on: bool) -> None:
    """Set TF32 for matrix products, convolutions and RNNs on CUDA, for the whole process.

    Whatever was set before: `matmul.allow_tf32` alone would leave a CPU's products at what
    `set_float32_matmul_precision` made them, and torch's getter raises where the two differ.
    """
    if has_new_switches():
        for above in (torch.backends, torch.backends.cudnn):  # what single operations inherit from
            if above.fp32_precision != "none":
                above.fp32_precision = "none"
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
