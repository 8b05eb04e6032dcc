"""Reading the graphs of compiled code."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from amp_launcher.torch.observe import compiled, compiled_calls, dispatch_observer, graph_text
from amp_launcher.torch.observe.calls import Call
from amp_launcher.torch.observe.compiled_calls import CompiledCalls
from amp_launcher.torch.observe.flops import Unaccounted
from amp_launcher.torch.observe.modules import Modules
from amp_launcher.torch.observe.recording import Recording

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[10, 32][32, 1]cpu", primals_2: "Sym(s77)", primals_3: "f32[s77, 32][32, 1]cpu"):
        # File: model.py:5 in forward, code: return self.head(hidden)
        cast: "bf16[10, 32][32, 1]cpu" = torch.ops.prims.convert_element_type.default(primals_1, torch.bfloat16)
        permute: "bf16[32, 10][1, 32]cpu" = torch.ops.aten.permute.default(cast, [1, 0]);  cast = None
        inputs: "bf16[s77, 32][32, 1]cpu" = torch.ops.prims.convert_element_type.default(primals_3, torch.bfloat16)
        mm: "bf16[s77, 10][10, 1]cpu" = torch.ops.aten.mm.default(inputs, permute);  inputs = permute = None
        twice: "bf16[2*s77, 10][10, 1]cpu" = torch.ops.aten.cat.default([mm, mm])
        back: "bf16[2*s77, 32][32, 1]cpu" = torch.ops.aten.mm.default(twice, cast);  twice = None
        images: "f32[2, 4, Max(1, s77 - 2), 6][1, 1, 1, 1]cpu" = torch.ops.aten.empty.memory_format([2])
        kernel: "f32[8, 2, 3, 3][18, 9, 3, 1]cpu" = torch.ops.aten.empty.memory_format([8])
        both = torch.ops.aten.convolution_backward.default(images, images, kernel, [], [], [], [], False, [], 2, [0, 1])
        first: "f32[8, 2, 3, 3][18, 9, 3, 1]cpu" = both[1]
        own: "f32[8][1]cpu" = torch.ops.mylib.product.default(first)
        return (mm, own)
"""


def calls_of(size: int, keep: tuple[str, ...] = ()) -> list[Call]:
    model = nn.Sequential(nn.Linear(32, 10))
    inputs = [model[0].weight, size, torch.zeros(size, 32)]
    return CompiledCalls(Modules(model, keep)).calls(graph_text.parse(GRAPH), inputs, False)


@pytest.mark.parametrize("size", [4, 9])
def test_products_have_the_dtypes_of_the_graph_and_the_sizes_of_the_inputs(size: int) -> None:
    gradient_positions = (size - 2) * 6
    assert [(call.operation, call.dtype, call.compiled, call.flops) for call in calls_of(size)] == [
        ("mm", "bfloat16", True, 2 * size * 32 * 10),
        ("mm", "bfloat16", True, 2 * (2 * size) * 10 * 32),
        ("convolution_backward", "float32", True, 2 * 2 * gradient_positions * (8 * 2 * 9)),
    ]


def test_a_product_with_a_parameter_has_the_function_of_its_module() -> None:
    known = [(("linear",), True), (("linear",), True), (("conv2d",), None)]  # whether the last was kept isn't known
    assert [(call.functions, call.kept) for call in calls_of(4, ("0",))] == known


def test_the_graph_of_a_forward_without_gradients_is_read_too() -> None:
    unnamed = GRAPH.replace("class GraphModule(", "class <lambda>(")
    assert unnamed != GRAPH
    assert graph_text.parse(unnamed) == graph_text.parse(GRAPH)


def test_operations_of_unknown_libraries_and_unknown_sizes_are_unaccounted() -> None:
    assert graph_text.parse(GRAPH).unaccounted == ("mylib.product in compiled code",)
    graph = graph_text.parse(GRAPH.replace("Max(1, s77 - 2)", "Mystery(s77)"))
    with pytest.raises(Unaccounted, match=r"size Mystery\(s77\)"):
        CompiledCalls(Modules(nn.Module())).calls(graph, [torch.zeros(10, 32), 4, torch.zeros(4, 32)], False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("s0", 6),
        ("2*s0 + 1", 13),
        ("((s0//4))", 1),
        ("s0**2", 36),
        ("Max(2, s0 - 5)", 2),
        ("Mod(s0, 4)", 2),
        ("-s0 + 10", 4),
    ],
)
def test_sizes_are_arithmetic(text: str, value: int) -> None:
    assert compiled_calls._size(text, {"s0": 6}) == value


@pytest.mark.skipif(torch.__version__ < "2.13", reason="compiled code can't be read in every release before")
def test_this_torch_has_every_private_name_that_the_observer_needs() -> None:
    """A newer torch that moved one of them makes every run `unknown`: this is where it shows first."""
    from torch._inductor.output_code import CompiledFxGraph

    assert dispatch_observer.missing(compiles=True) == ""
    assert compiled.missing() == ""
    assert compiled._compiler() is not None
    assert list(inspect.signature(CompiledFxGraph.__call__).parameters) == ["self", "inputs"]
    assert hasattr(torch.autograd, "_profiler_enabled")
    with Recording() as recording, torch.no_grad():
        torch.ones(2, 2) @ torch.ones(2, 2)
    profile = recording.profile
    (product,) = [event for event in profile.kineto_results.experimental_event_tree() if event.name == "aten::matmul"]
    assert [list(operand.sizes) for operand in product.extra_fields.inputs] == [[2, 2], [2, 2]]
    assert all(operand.dtype is torch.float32 and operand.storage_data_ptr for operand in product.extra_fields.inputs)
    assert product.children[0].name == "aten::mm"
    assert product.extra_fields.sequence_number == -1


SCALED = """
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f4e2m1fnx2[128, 32][32, 1]cuda:0", primals_2: "f4e2m1fnx2[128, 32][32, 1]cuda:0"):
        permute: "f4e2m1fnx2[32, 128][1, 32]cuda:0" = torch.ops.aten.permute.default(primals_2, [1, 0])
        mm: "bf16[128, 128][128, 1]cuda:0" = torch.ops.aten._scaled_mm.default(primals_1, permute)
        return (mm,)
"""


def test_two_numbers_of_four_bits_are_one_element_in_compiled_code_too() -> None:
    inputs = [torch.zeros(128, 32), torch.zeros(128, 32)]
    (call,) = CompiledCalls(Modules(nn.Module())).calls(graph_text.parse(SCALED.strip()), inputs, False)
    assert (call.operation, call.dtype, call.flops) == ("_scaled_mm", "float4_e2m1fn_x2", 2 * 128 * 64 * 128)
