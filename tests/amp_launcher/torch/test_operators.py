"""Operators of libraries, and of users: what multiplies matrices, what doesn't, and what can't be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from amp_launcher.precision import operators
from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe.dispatch_observer import DispatchObserver
from amp_launcher.torch.observe.flops import FORMULAS
from amp_launcher.torch.observe.modules import Modules
from tests.amp_launcher.torch.observed_runs import Dense, report_of

HALF = torch.bfloat16


@pytest.fixture
def define() -> Iterator[Callable[..., Any]]:
    """Registers an operator with a CPU kernel that returns its first argument's copy, or nothing."""
    with ExitStack() as stack:

        def define(name: str, schema: str, *, tags: tuple[Any, ...] = (), kernel: Any = None) -> Any:
            namespace, _, own = name.partition("::")
            library = stack.enter_context(torch.library._scoped_library(namespace, "FRAGMENT"))
            library.define(own + schema, tags=tags)
            library.impl(own, kernel or (lambda first, *rest, **named: first.clone()), "CPU")
            return getattr(getattr(torch.ops, namespace), own)

        yield define


def seen(run: Callable[[], Any]) -> DispatchObserver:
    mode = DispatchObserver(Modules(nn.Module()), lambda device: None)
    with mode:
        run()
    assert not mode.guard.problems, mode.guard.problems
    return mode


QKV = "(Tensor q, Tensor k, Tensor v, float p)  -> Tensor"
PACKED = "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k) -> Tensor"
GRADIENTS = "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out) -> Tensor"
X = torch.ones(2, 6, 4, 8, dtype=HALF)
ROWS, ENDS = torch.ones(10, 4, 8, dtype=HALF), torch.tensor([0, 4, 10])
MATRIX, WEIGHT = torch.ones(6, 8, dtype=HALF), torch.ones(6, 8, dtype=torch.uint8)
SCORES = 2 * 6 * 4 * 6


@pytest.mark.parametrize(
    ("name", "schema", "given", "work"),
    [
        ("flash_attn::_flash_attn_forward", QKV, (X, X, X, 0.0), 2 * SCORES * 16),
        ("flash_attn::_flash_attn_backward", GRADIENTS, (X, X, X, X, X), 2 * SCORES * 40),
        ("flash_attn::_flash_attn_varlen_forward", PACKED, (ROWS, ROWS, ROWS, ENDS, ENDS), 2 * 4 * (16 + 36) * 16),
        ("xformers_flash::flash_fwd", QKV.replace(" q", " query"), (X, X, X, 0.0), 2 * SCORES * 16),
        ("flash_attn_3::_flash_attn_forward", QKV, (X, X, X, 0.0), 2 * SCORES * 16),
        ("bitsandbytes::gemm_4bit_here", "(Tensor A, Tensor B, int n) -> Tensor", (MATRIX, WEIGHT, 6), 2 * 48 * 8),
        ("torchao::rowwise_scaled_linear_here", "(Tensor a, Tensor b) -> Tensor", (MATRIX, WEIGHT), 2 * 48 * 8),
    ],
)
def test_products_of_libraries_are_counted(define: Any, name: str, schema: str, given: Any, work: int) -> None:
    operator = define(name, schema)
    mode = seen(lambda: operator(*given))
    assert [(call.flops, call.dtype) for call in mode.calls] == [(work, "bfloat16")]


@pytest.mark.parametrize("multiplies", [True, False])
def test_a_product_of_a_library_is_one_to_both_observers(define: Any, multiplies: bool) -> None:
    """Whatever its kernel calls below the dispatcher's modes, as that of bitsandbytes does on a CPU."""
    kernel = (lambda first, second: first @ second) if multiplies else None
    operator = define("bitsandbytes::gemm_of_both", "(Tensor A, Tensor B) -> Tensor", kernel=kernel)

    class Quantized(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(operator(inputs, torch.eye(32)))

    report = report_of(Quantized, Amp(level="o0"))
    assert not report["audit"]
    forward = [call for call in report["calls"] if not call["backward"]]
    assert [call["operation"] for call in forward] == ["gemm_of_both", "addmm"]
    assert forward[1]["functions"] == ["linear"], "as the profiler shows of the products behind it"


@pytest.mark.parametrize(
    ("name", "given", "tags", "known"),
    [
        ("mylib::scale", X, (torch.Tag.pointwise,), True),
        ("mylib::any", X, (), False),
        ("mylib::of_a_vector", torch.ones(3), (), False),
        ("torchao::dequantize_here", X, (), True),
        ("torchao::something_here", X, (), False),
    ],
)
def test_what_holds_no_product_is_no_question(define: Any, name: str, given: Any, tags: Any, known: bool) -> None:
    operator = define(name, "(Tensor x) -> Tensor", tags=tags)
    mode = seen(lambda: operator(given))
    assert (not mode.calls, not mode.unaccounted) == (True, known)


def test_a_formula_registered_with_torch_counts(define: Any) -> None:
    operator = define("mylib::product", "(Tensor a, Tensor b) -> Tensor")
    register_flop_formula(operator)(lambda a, b, *rest, **named: 2 * a[0] * a[1] * b[1])
    try:
        (call,) = seen(lambda: operator(MATRIX, MATRIX.T)).calls
    finally:
        flop_registry.pop(operator)
    assert (call.flops, call.dtype) == (2 * 6 * 8 * 6, "bfloat16")


def test_sparse_products_are_told_and_not_judged() -> None:
    mode = seen(lambda: torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 2)))
    assert (mode.calls, mode.unaccounted) == ([], {})
    assert dict(mode.apart) == {"_sparse_addmm of sparse matrices in float32": 1}


def test_every_known_product_has_a_formula() -> None:
    assert set(operators.PRODUCTS) == set(FORMULAS)
