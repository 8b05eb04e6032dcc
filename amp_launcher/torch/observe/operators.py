"""What an operator that torch dispatches is to the observer: a matrix product, something without any, or unknown.

torch's own operators and those of libraries that many people train with are told by their names, their arguments by
their declared schema. Of others decide a formula that somebody registered with torch's FLOP counter, torch's tag for
elementwise operators, and the arguments of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils.flop_counter import flop_registry

from amp_launcher.precision.gemm import QUANTIZERS
from amp_launcher.precision.operators import LIBRARIES, is_attention, is_light, is_matrix_operation, knows
from amp_launcher.torch.observe import flops
from amp_launcher.torch.observe.calls import dtype_name, tensors
from amp_launcher.torch.observe.lineage import SAME_DATA

LIGHT, FOLLOWED, COMPOSITE, MATRIX, UNKNOWN = "light", "followed", "composite", "matrix", "unknown"
REDUCTION, GATHERING = "reduction", "gathering"

HOLDING_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "_native_multi_head_attention _transformer_encoder_layer_fwd "
        "_trilinear affine_grid_generator linalg_pinv linalg_matrix_exp conv_tbc"
    ).split()
)
"""Kernels that dispatch their products, and need autocast in there where it is on. The first two are of evaluations,
the others those of `nn.Bilinear`, spatial transformers, pseudo-inverses, orthogonal weights and `torch.conv_tbc`."""

_QUERY, _KEY, _VALUE = ("query", "q"), ("key", "k"), ("value", "v")
_GRADIENT = ("grad_out", "dout", "grad")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k"), ("seqstart_q", "seqstart_k")


def kind_of(func: Any) -> str:
    """What the operator is, as far as its name and schema tell."""
    if isinstance(func, HigherOrderOperator):
        return COMPOSITE if func in flop_registry else UNKNOWN
    if func._schema.name.startswith("prim::"):
        return LIGHT  # questions to a tensor, such as its device, which the dispatcher doesn't have
    if has_kernel(func, "CompositeImplicitAutograd") and not (has_kernel(func, "CPU") or has_kernel(func, "CUDA")):
        return COMPOSITE  # arrives undecomposed in inference mode only
    namespace, _, name = func._schema.name.partition("::")
    if func._schema.name in HOLDING_PRODUCTS:
        return COMPOSITE
    if knows(namespace):
        if "c10d" in namespace and "reduce" in name:
            return REDUCTION
        if name == "_allgather_base_":
            return GATHERING
        if is_matrix_operation(name):
            return MATRIX
        return FOLLOWED if name in SAME_DATA else LIGHT
    if func._overloadpacket in flop_registry:
        return MATRIX
    if torch.Tag.pointwise in func.tags:
        return LIGHT
    if namespace in LIBRARIES:
        if name in QUANTIZERS:
            return FOLLOWED
        return LIGHT if is_light(name) else MATRIX if is_attention(name) or is_matrix_operation(name) else UNKNOWN
    return UNKNOWN


def is_light_in_graph(namespace: str, name: str) -> bool:
    """Whether an operator in the text of a graph holds no matrix product, as far as name and schema tell."""
    if knows(namespace):
        return not is_matrix_operation(name)
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        return all(kind_of(getattr(packet, overload)) in (LIGHT, FOLLOWED) for overload in packet.overloads())
    except (AttributeError, RuntimeError):  # not registered in this process, or an operator without overloads
        return False


def takes_no_tensor(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is given no tensor. One of a single dimension may hold a matrix, and an operator that takes
    functions may have other tensors than these."""
    return not isinstance(func, HigherOrderOperator) and not tensors([*args, *kwargs.values()])


def sparse(args: Sequence[Any]) -> str:
    """The dtype of a call's sparse matrices; empty without any."""
    given = [tensor for tensor in tensors(args) if tensor.layout != torch.strided]
    return dtype_name(given[0].dtype) if given else ""


def product_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product | None:
    """The matrices of a call and its work; None where that can't be told. It may read lengths of sequences from the
    device."""
    namespace, _, name = func._schema.name.partition("::")
    if knows(namespace):
        if name not in flops.FORMULAS:
            return None
        positions, formula = flops.FORMULAS[name]
        matrices = tensors([args[position] for position in positions])
        if formula is None:
            return Product(matrices, lambda out: _registered(func, args, kwargs, out))
        own = formula
        return Product(matrices, lambda out: own(args, _shape(out)))
    if func._overloadpacket in flop_registry:
        matrices = [tensor for tensor in tensors([*args, *kwargs.values()]) if tensor.dim() > 1]
        return Product(matrices, lambda out: _registered(func, args, kwargs, out))
    return _of_library(func, name, args, kwargs)


class Product:
    """The matrices of a call, and its work."""

    def __init__(self, matrices: list[torch.Tensor], work: Callable[[Any], int]) -> None:
        self.matrices = matrices
        self.work = work
        """From what the call returned to its floating-point operations."""


def _of_library(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product | None:
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    if is_attention(name):
        return _attention(named)
    matrices = [value for value in named.values() if isinstance(value, torch.Tensor) and value.dim() > 1][:2]
    if len(matrices) < 2:
        return None
    return Product(matrices, lambda out: 2 * prod(_shape(out)) * matrices[0].shape[-1])


def _attention(named: Mapping[str, Any]) -> Product | None:
    """Attention of sequences in a batch, (..., length, heads, width), or end to end, (rows, heads, width)."""
    found = [_first(named, names) for names in (_QUERY, _KEY, _VALUE)]
    query, key, value = found
    if query is None or key is None or value is None:
        return None
    gradient = _first(named, _GRADIENT)
    of_query, of_value = (1, 1) if gradient is None else (3, 2)  # the scores are computed again
    matrices = [*([] if gradient is None else [gradient]), query, key, value]
    lengths = [_first(named, (names[side],)) for side in (0, 1) for names in _LENGTHS]
    ends = [length for length in lengths if length is not None]

    def work(out: Any) -> int:
        if len(ends) == 2:
            of_each = [[after - before for before, after in pairwise(end.tolist())] for end in ends]
            pairs = sum(rows * columns for rows, columns in zip(*of_each, strict=True)) * query.shape[-2]
        else:
            pairs = prod(query.shape[:-1]) * key.shape[-3]
        return int(2 * pairs * (of_query * query.shape[-1] + of_value * value.shape[-1]))

    return Product(matrices, work)


def _first(named: Mapping[str, Any], names: Sequence[str]) -> torch.Tensor | None:
    return next((named[name] for name in names if isinstance(named.get(name), torch.Tensor)), None)


def _registered(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    return int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=out))


def _shape(out: Any) -> Sequence[int]:
    produced = tensors([out])
    return produced[0].shape if produced else ()


def has_kernel(func: Any, key: str) -> bool:
    """Whether the operation has a kernel of its own there. SiLU's gradient has one for each device, and a composite
    one that rounds otherwise; in its place it would change what is observed."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
