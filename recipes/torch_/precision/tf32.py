"""Which float32 the matrix units use: IEEE's, or TF32 with its 10-bit mantissa.

From torch 2.9 there are `fp32_precision` switches. Only one of the two kinds is ever set: once a new one was, reading
the older `allow_tf32` raises.
"""

from __future__ import annotations

import torch

READS_NEW_SWITCHES = "2.13"
"""torch.compile read `allow_tf32` up to some release after 2.9, and so failed where the new switches were set
(pytorch issue 166387); in this one it doesn't."""


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
