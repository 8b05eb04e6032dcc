"""torchao's prototypes of linear layers (`amp.gemm=mxfp8` and `nvfp4`), from where they are in 0.18."""

from __future__ import annotations

import torch
from torch import nn
from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4Linear
from torchao.prototype.mx_formats import kernels
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference


def mxfp8_problem() -> str:
    """Why MXFP8 layers can't run on this machine's GPU; empty where they can."""
    name = "torchao::mxfp8_quantize"
    if kernels._mxfp8_cuda_kernels_available and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
        return ""
    built = f"this torch is of CUDA {torch.version.cuda}" if torch.version.cuda else "this torch is for CPUs"
    return f"torchao has no kernel {name} here; its wheel on PyPI has it for a torch of CUDA 13, and {built}"


def to_mxfp8(linear: nn.Linear, emulate: bool) -> nn.Linear:
    """An MXFP8 layer with the same parameters. Emulated it rounds to MXFP8, and multiplies in the dtype before."""
    preference = KernelPreference.EMULATED if emulate else KernelPreference.AUTO
    with torch.device("meta"):
        layer: nn.Linear = MXFP8Linear(
            linear.in_features, linear.out_features, bias=linear.bias is not None, kernel_preference=preference
        )
    layer.weight, layer.bias = linear.weight, linear.bias
    return layer


class Nvfp4Linear(NVFP4Linear):
    """An NVFP4 layer for inputs of any shape: in torchao's the last dimension but one has to be a multiple of 128, here
    all rows together. Its state is that of `nn.Linear`: random signs and seed are drawn anew, as at the start."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = super().forward(x.flatten(0, -2))
        return rows.unflatten(0, x.shape[:-1])


def to_nvfp4(linear: nn.Linear) -> nn.Linear:
    """An NVFP4 layer with the same parameters."""
    layer: nn.Linear = Nvfp4Linear.from_linear(linear)
    layer._non_persistent_buffers_set.update(layer._buffers)
    return layer
