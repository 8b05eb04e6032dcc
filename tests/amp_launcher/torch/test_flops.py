"""Work counted by hand, and which of torch's operations are work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from amp_launcher.precision.operators import is_matrix_operation
from amp_launcher.torch.observe import flops
from amp_launcher.torch.observe.calls import Call
from amp_launcher.torch.observe.dispatch_observer import DispatchObserver
from amp_launcher.torch.observe.modules import Modules
from tests.amp_launcher.torch.observed_runs import Cnn, Transformer


def observed(compute: Callable[[], torch.Tensor], backward: bool = True) -> list[Call]:
    mode = DispatchObserver(Modules(nn.Module()), lambda device: None)
    with mode:
        result = compute()
        if backward:
            result.sum().backward()
    assert not mode.unaccounted
    return mode.calls


def work(calls: list[Call]) -> tuple[int, int]:
    """Forward and backward."""
    forward, backward = (sum(call.flops for call in calls if call.backward is phase) for phase in (False, True))
    return forward, backward


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(
    ("compute", "forward"),
    [
        (lambda: leaf(3, 5) @ leaf(5, 7), 2 * 3 * 5 * 7),
        (lambda: leaf(2, 3, 5) @ leaf(2, 5, 7), 2 * 2 * 3 * 5 * 7),
        (lambda: functional.linear(leaf(2, 3, 5), leaf(7, 5), leaf(7)), 2 * 2 * 3 * 5 * 7),
        (lambda: torch.baddbmm(leaf(2, 3, 7), leaf(2, 3, 5), leaf(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
        (lambda: torch.einsum("bij,bkj->bik", leaf(2, 3, 5), leaf(2, 7, 5)), 2 * 2 * 3 * 5 * 7),
        (lambda: functional.conv2d(leaf(2, 4, 8, 8), leaf(6, 4, 3, 3)), 2 * 2 * 36 * 6 * 4 * 9),
        (lambda: functional.conv2d(leaf(2, 4, 8, 8), leaf(6, 4, 3, 3), stride=2, padding=1), 2 * 2 * 16 * 6 * 4 * 9),
        (lambda: functional.conv2d(leaf(2, 4, 8, 8), leaf(6, 2, 3, 3), groups=2), 2 * 2 * 36 * 6 * 2 * 9),
        (lambda: functional.conv1d(leaf(2, 8, 10), leaf(8, 1, 3), groups=8), 2 * 2 * 8 * 8 * 3),
        (lambda: functional.conv3d(leaf(1, 2, 4, 4, 4), leaf(3, 2, 2, 2, 2)), 2 * 27 * 3 * 2 * 8),
        (lambda: functional.conv_transpose2d(leaf(2, 4, 8, 8), leaf(4, 6, 3, 3)), 2 * 2 * 64 * 4 * 6 * 9),
        (lambda: functional.conv_transpose1d(leaf(2, 4, 8), leaf(4, 3, 3), groups=2), 2 * 2 * 8 * 4 * 3 * 3),
    ],
)
def test_a_product_costs_what_it_does_by_hand_and_its_gradients_twice_that(
    compute: Callable[[], torch.Tensor], forward: int
) -> None:
    assert work(observed(compute)) == (forward, 2 * forward)


def test_attention_costs_two_products_and_its_gradients_five() -> None:
    def attend() -> torch.Tensor:
        query, key, value = leaf(2, 3, 7, 8), leaf(2, 3, 5, 8), leaf(2, 3, 5, 8)
        return functional.scaled_dot_product_attention(query, key, value)

    one = 2 * (2 * 3) * 7 * 5 * 8
    assert work(observed(attend)) == (2 * one, 5 * one)


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_on_a_gpu_costs_what_torchs_own_counter_says(kernel: str) -> None:
    query, key, value, gradient = (torch.empty(2, 3, rows, 8) for rows in (7, 5, 5, 7))
    for name, given in (("", (query, key, value)), ("_backward", (gradient, query, key, value))):
        operation = f"_scaled_dot_product_{kernel}_attention{name}"
        packet = getattr(torch.ops.aten, operation)
        if packet not in flop_registry:
            pytest.skip("this torch doesn't count it")
        theirs = flop_registry[packet](*given, out_val=query)
        positions, formula = flops.FORMULAS[operation]
        assert formula is not None
        assert (positions, formula(given, ())) == (tuple(range(len(given))), theirs)


def test_a_matrix_times_a_vector_costs_two_for_each_element() -> None:
    assert work(observed(lambda: torch.mv(torch.randn(3, 5), torch.randn(5)), backward=False))[0] == 2 * 3 * 5
    assert work(observed(lambda: torch.dot(torch.randn(5), torch.randn(5)), backward=False))[0] == 2 * 5


def test_a_recurrent_layer_multiplies_every_weight_at_every_step() -> None:
    layer = nn.LSTM(8, 16, num_layers=2)
    inputs = leaf(5, 3, 8)
    forward = 2 * 5 * 3 * 4 * 16 * ((8 + 16) + (16 + 16))
    assert work(observed(lambda: layer(inputs)[0])) == (forward, 2 * forward)


def shaped(*shape: int) -> Any:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("operation", "arguments", "forward"),
    [
        ("_cudnn_rnn", [shaped(5, 3, 8), [shaped(64, 8), shaped(64, 16), shaped(64)]], 2 * 5 * 3 * 64 * (8 + 16)),
        ("_grouped_mm", [shaped(16, 32), shaped(4, 32, 8)], 2 * 16 * 32 * 8),
        ("_grouped_mm", [shaped(4, 16, 32), shaped(4, 32, 8)], 2 * 4 * 16 * 32 * 8),
        ("_grouped_mm", [shaped(16, 32), shaped(32, 8)], 2 * 16 * 32 * 8),
        ("_grouped_mm", [shaped(4, 16, 32), shaped(32, 16)], 2 * 16 * 32 * 16),
    ],
)
def test_an_operation_that_needs_a_gpu_costs_what_it_does_by_hand(
    operation: str, arguments: list[Any], forward: int
) -> None:
    positions, formula = flops.FORMULAS[operation]
    assert positions == (0, 1) and formula is not None
    assert formula(arguments, ()) == forward


@pytest.mark.parametrize("make", [Cnn, Transformer])
def test_without_groups_torchs_own_counter_says_the_same(make: Callable[[], nn.Module]) -> None:
    """But for attention on a CPU, which torch's counter leaves out before 2.15."""
    model, inputs = make(), make.images()  # type: ignore[attr-defined]
    calls = observed(lambda: model(inputs))
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    attention = sum(call.flops for call in calls if "attention" in call.operation)
    assert counter.get_total_flops() in (sum(work(calls)), sum(work(calls)) - attention)
    assert (attention > 0) == (make is Transformer)


def test_the_widest_of_the_matrices_counts_and_not_the_bias() -> None:
    query, key, value = (torch.randn(2, 3, 7, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    calls = observed(lambda: functional.scaled_dot_product_attention(query, key, value))
    assert [call.dtype for call in calls] == ["bfloat16", "bfloat16"], "backward has a float32 log-sum-exp too"
    mixed = Call(
        operation="mm", backward=False, operands=(("bfloat16", (1, 1)), ("float32", (1, 1))), flops=2, device=""
    )
    assert mixed.dtype == "float32"


def test_inference_mode_hides_nothing() -> None:
    layer = nn.Linear(5, 7)
    with torch.inference_mode():
        calls = observed(lambda: layer(torch.randn(3, 5)) @ torch.randn(7, 2), backward=False)
    assert [(call.operation, call.flops) for call in calls] == [("addmm", 2 * 3 * 5 * 7), ("mm", 2 * 3 * 7 * 2)]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch has no such operation")
def test_grouped_products_and_their_gradients_are_counted() -> None:
    tokens = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
    experts = torch.randn(4, 32, 8, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([4, 8, 10, 16], dtype=torch.int32)
    calls = observed(lambda: functional.grouped_mm(tokens, experts, offs=ends).float() * 2)
    assert work(calls) == (2 * 16 * 32 * 8, 2 * 2 * 16 * 32 * 8)
    assert {call.dtype for call in calls} == {"bfloat16"}


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_scaled_mm_v2"), reason="this torch has no such operation")
def test_a_scaled_product_is_counted_in_its_eight_bits() -> None:
    half, eight = torch.bfloat16, torch.float8_e4m3fn
    left, right = torch.randn(16, 32).to(eight), torch.randn(8, 32).to(eight).t()
    whole, one = functional.ScalingType.TensorWise, torch.tensor(1.0)
    (call,) = observed(lambda: functional.scaled_mm(left, right, one, whole, one, whole, output_dtype=half), False)
    assert (call.operation, call.dtype, call.flops) == ("_scaled_mm_v2", "float8_e4m3fn", 2 * 16 * 32 * 8)


EIGHT, FIVE, FOUR = torch.float8_e4m3fn, torch.float8_e5m2, getattr(torch, "float4_e2m1fn_x2", None)


@pytest.mark.skipif(FOUR is None, reason="this torch has no such dtype")
def test_scaled_products_on_a_gpu_are_counted_in_the_dtypes_of_their_operands() -> None:
    """Of fake tensors: there the kernels aren't needed. Two numbers of four bits are one element."""

    def of(dtype: torch.dtype | None, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    def multiply() -> torch.Tensor:
        one, half = of(torch.float32), torch.bfloat16
        torch._scaled_mm(of(FIVE, 16, 32), of(EIGHT, 48, 32).t(), one, one, out_dtype=half)
        torch._scaled_mm(of(FOUR, 128, 32), of(FOUR, 128, 32).t(), of(EIGHT, 512), of(EIGHT, 512), out_dtype=half)
        experts, ends = of(EIGHT, 4, 48, 32).transpose(-2, -1), of(torch.int32, 4)
        scales = of(torch.float32, 16), of(torch.float32, 4, 48)
        return torch._scaled_grouped_mm(of(EIGHT, 16, 32), experts, *scales, offs=ends, out_dtype=half)

    with FakeTensorMode():
        calls = observed(multiply, backward=False)
    assert [(call.operation, call.use.formats, call.flops) for call in calls] == [
        ("_scaled_mm", ("float8_e5m2", "float8_e4m3fn"), 2 * 16 * 32 * 48),
        ("_scaled_mm", ("float4_e2m1fn_x2",) * 2, 2 * 128 * 64 * 128),
        ("_scaled_grouped_mm", ("float8_e4m3fn",) * 2, 2 * 16 * 32 * 48),
    ]


def test_flex_attention_is_observed_by_its_parts() -> None:
    """Not compiled, it is two products, the first of them in float32. Torch 2.6 has no formula of it: unknown there."""
    inputs = [torch.randn(1, 2, 128, 16, dtype=torch.bfloat16) for _ in range(3)]
    if torch.ops.higher_order.flex_attention not in flop_registry:
        mode = DispatchObserver(Modules(nn.Module()), lambda device: None)
        with mode:
            flex_attention(*inputs)
        assert list(mode.unaccounted) == ["flex_attention"]
        return
    calls = observed(lambda: flex_attention(*inputs), backward=False)
    assert [(call.operation, call.dtype) for call in calls] == [("bmm", "float32"), ("bmm", "bfloat16")]
    assert work(calls)[0] == 2 * 2 * (2 * 128 * 128 * 16)


def test_a_matrix_operation_without_a_formula_is_unaccounted() -> None:
    mode = DispatchObserver(Modules(nn.Module()), lambda device: None)
    weight, scales = torch.ones(32, 64, dtype=torch.int8), torch.ones(32, dtype=torch.bfloat16)
    with mode:
        torch.ops.aten._weight_int8pack_mm(torch.ones(2, 64, dtype=torch.bfloat16), weight, scales)
    assert list(mode.unaccounted) == ["aten._weight_int8pack_mm.default"]


def test_the_products_of_a_convolution_over_time_are_counted_in_the_type_that_autocast_gives_them() -> None:
    inputs, weight, bias = torch.randn(12, 4, 8), torch.randn(3, 8, 8, requires_grad=True), torch.zeros(8)
    mode = DispatchObserver(Modules(nn.Module()), lambda device: None)
    with torch.autocast("cpu", torch.bfloat16), mode:
        outputs = torch.conv_tbc(inputs, weight, bias)
    with mode:
        outputs.float().sum().backward()
    forward = (("bfloat16", (40, 8)), ("bfloat16", (8, 8)))
    assert [call.operands for call in mode.calls[:3]] == [forward] * 3
    assert {(call.operation, call.backward, call.operands[0][0]) for call in mode.calls[3:]} == {
        ("addmm_", True, "bfloat16")
    }


def test_no_operation_of_aten_that_multiplies_matrices_passes_for_light() -> None:
    """Every name with such a word in it that is taken for light is on this list, read through by hand."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    operations = {name.removeprefix("aten::").partition(".")[0] for name in names}
    suspects = [
        operation
        for operation in operations
        if any(piece in operation for piece in PIECES) and not any(harmless in operation for harmless in HARMLESS)
    ]
    assert [operation for operation in suspects if not is_matrix_operation(operation)] == []


PIECES = "mm mv conv matmul gemm linear attention rnn lstm gru dot einsum".split()
HARMLESS = (
    "upsample gamma comm dummy cumm hamming _convert_ prepack pack_gemm quantize_weight _thnn_ flatten_weight "
    "reorder_conv convolution_mode linear_combination quantized_"
).split()
