"""Which operators multiply matrices, by the names that torch prints: `aten.mm.default`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from amp_launcher.typed import SettingsError, show

PRODUCTS = (
    "mm bmm _int_mm addmm addbmm baddbmm addmm_ addbmm_ baddbmm_ _addmm_activation _scaled_mm _scaled_mm_v2 "
    "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 mv dot vdot addmv addmv_ addr addr_ convolution "
    "_euclidean_dist convolution_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward "
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
    + " ".join(
        f"_scaled_dot_product_{kernel}{end}"
        for kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
        for end in ("", "_backward")
    )
).split()
"""Operations of aten whose work is counted."""
LIBRARIES = frozenset("flash_attn flash_attn_3 flashattn xformers xformers_flash torchao bitsandbytes DaoAILab".split())
"""Libraries whose operators are told by the words of their names and arguments."""

_OF_TORCH = frozenset(
    "aten prim prims c10d c10d_functional _c10d_functional _c10d_functional_autograd _dtensor cplib flex_lib fsdp "
    "symm_mem profiler inductor inductor_prims rngprims streams debugprims debug_mode_ops export quantized_decomposed "
    "torchvision".split()
)
_WORDS = frozenset(
    (
        "mm bmm addmm addbmm baddbmm spaddmm sspaddmm smm hspmm mv addmv dot vdot vecdot addr ger matmul tensordot "
        "gemm gemv einsum conv conv1d conv2d conv3d convolution depthwise attention linear qlinear bilinear trilinear "
        "rnn lstm gru"
    ).split()
)
_LIGHT_WORDS = frozenset("upsample flatten prepack pack quantize reorder indices combination mode".split())
_ATTENTION_WORDS = frozenset("attn attention flash".split())
_LIGHT_IN_LIBRARIES = frozenset(
    "quantize dequantize quant dequant qparams scale update prepack conv1d rotary embedding dropout norm".split()
)
_FREE_OF_PRODUCTS = " in compiled code"


def knows(namespace: str) -> bool:
    """Whether names of that library's operators tell whether they multiply matrices."""
    return namespace in _OF_TORCH


def is_matrix_operation(name: str) -> bool:
    """Whether an operation of that name multiplies matrices, judged by the words of its name if no formula has it."""
    if name in PRODUCTS:
        return True
    if name.startswith("_thnn_"):
        return False  # the elementwise part of a recurrent cell
    words = set(name.strip("_").split("_"))
    return bool(words & _WORDS) and not words & _LIGHT_WORDS


def is_attention(name: str) -> bool:
    """Whether an operator of `LIBRARIES` is attention."""
    return bool(set(name.strip("_").split("_")) & _ATTENTION_WORDS)


def is_light(name: str) -> bool:
    """Whether an operator of `LIBRARIES` multiplies no matrices."""
    words = set(name.strip("_").split("_"))
    return bool(words & _LIGHT_IN_LIBRARIES) and not words & {"mm", "gemm", "matmul", "linear"}


def operator_of(entry: str) -> str:
    """The operator that an entry of a report's `unaccounted` names; empty where it is no operator, or known to
    multiply matrices."""
    name = entry.removesuffix(_FREE_OF_PRODUCTS)
    namespace, _, rest = name.partition(".")
    if " " in name or not rest or (knows(namespace) and is_matrix_operation(rest.partition(".")[0])):
        return ""
    return name


def check_ignored(key: str, patterns: Sequence[str]) -> None:
    """Refuse patterns that match a known matrix product. Raises `SettingsError`."""
    for pattern in patterns:
        if product := next((name for name in PRODUCTS if _matches(f"aten.{name}", pattern)), None):
            raise SettingsError(
                f"{key}={show([pattern])} matches aten.{product}, which multiplies matrices; name operators that "
                "multiply none, as mylib.*",
                key,
            )


def ignoring(reports: Iterable[Mapping[str, Any]], patterns: Sequence[str]) -> list[dict[str, Any]]:
    """The reports (`amp_launcher.precision.observation`) with the operators that match a pattern as `ignored`."""
    return [_ignoring(report, patterns) for report in reports]


def _ignoring(report: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    unaccounted = report["unaccounted"]
    ignored = {
        entry: times
        for entry, times in unaccounted.items()
        if (name := operator_of(entry)) and any(_matches(name, pattern) for pattern in patterns)
    }
    rest = {entry: times for entry, times in unaccounted.items() if entry not in ignored}
    return {**report, "unaccounted": rest, "ignored": ignored} if ignored else dict(report)


def _matches(name: str, pattern: str) -> bool:
    """The overload may be left out: `mylib.gelu` is `mylib.gelu.default`."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
