"""GPU kernels by their names: which use tensor cores, as DLProf reported, and which multiply matrices.

Names are no proof. They are from published traces of cuBLAS, cuDNN, CUTLASS, XLA and Triton, and from traces of an
H200; a kernel of another name counts as one without tensor cores, so that a share is a lower bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

RECORDED = frozenset({9})
"""Generations of GPUs, by the first number of their compute capability, of which a day was recorded
(`benchmarks/results`): each kernel that multiplies matrices was launched by an operation, by compiled code, or past
what an observer sees. Of others such a kernel changes no verdict."""

# cuBLAS and cuDNN name the instruction's shape: h884, h1688, s1688, s16816, i16832. s is float32 accumulation of half
# or, at 1688, of TF32 operands. CUTLASS says tensorop; newer cuBLAS says nvjet; dtypes stand as in bf16bf16_bf16f32.
_TENSOR_CORES = re.compile(
    r"""
      (?:^|_)[his](?:884|1688|16816|8816|16832|16864)(?:gemm|cudnn|fprop|dgrad|wgrad|_|$)
    | tensorop
    | tf32f32 | (?:bf16bf16|f16f16|e4m3e4m3|e5m2e4m3|e4m3e5m2)_
    | ^nvjet_
    | [hiqw]g?mma
    | flash_fwd | flash_bwd | fmha
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Those on plain cores say gemm or gemv, or what they compute of a convolution.
_MATRICES = re.compile(
    r"gemm|gemv|xmma|cutlass|convolve|winograd|(?:^|_)(?:fprop|dgrad|wgrad)|^triton_tem_", re.IGNORECASE
)
_NO_KERNEL = re.compile(r"^(?:mem(?:cpy|set)|\[?cuda ?mem)", re.IGNORECASE)


def uses_tensor_cores(kernel: str) -> bool:
    """Whether the name of a kernel shows that it multiplies matrices on tensor cores."""
    return _TENSOR_CORES.search(kernel) is not None


def multiplies_matrices(kernel: str) -> bool:
    """Whether the name of a kernel shows that it multiplies matrices, convolves, or computes attention."""
    return _MATRICES.search(kernel) is not None or uses_tensor_cores(kernel)


def short_name(kernel: str) -> str:
    """A kernel's name without the arguments of its template and of itself, which fill lines."""
    name = kernel.partition("::type ")[2] if kernel.startswith("std::enable_if<") else kernel
    return re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)::", ""))[0]


def tensor_core_share(microseconds: Mapping[str, float]) -> float | None:
    """The share of GPU time in kernels that use tensor cores, 0 to 1, from each kernel's name and time.

    Copies between host and device are no kernels. None where there was none, as on a CPU.
    """
    kernels = {name: time for name, time in microseconds.items() if not _NO_KERNEL.match(name)}
    total = sum(kernels.values())
    if not total:
        return None
    return round(sum(time for name, time in kernels.items() if uses_tensor_cores(name)) / total, 4)
