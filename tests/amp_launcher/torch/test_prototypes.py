"""Linear layers by torchao's prototypes: MXFP8 emulated on a CPU, and what MXFP8 and NVFP4 have a GPU do, in tensors
without data. The stand-ins there are for torchao's kernels that round operands, which need a GPU of capability 10.0.
The products are the layers' own."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from amp_launcher.precision import operators
from amp_launcher.precision.gemm import FORMATS, QUANTIZERS, ROLES
from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe import graph_text
from amp_launcher.torch.observe.compiled_calls import CompiledCalls
from amp_launcher.torch.observe.dispatch_observer import DispatchObserver
from amp_launcher.torch.observe.modules import Modules
from amp_launcher.torch.observe.step_observer import _aggregate
from amp_launcher.torch.precision import Precision
from amp_launcher.typed import SettingsError
from tests.amp_launcher.precision.reports import call, expect, report
from tests.amp_launcher.torch import observed_runs
from tests.amp_launcher.torch.observed_runs import Training, observed

torchao = pytest.importorskip("torchao")
prototypes = importlib.import_module("amp_launcher.torch.precision.prototypes")

MXFP8 = Amp(level="o2", dtype="bfloat16", gemm="mxfp8")
CPU = torch.device("cpu")
NAMES = [name for name, format in FORMATS.items() if format.prototype]
EAGER_AND_COMPILED = pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


class Net(nn.Module):
    """Two layers and a head, on sequences of [32, 4, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(64, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(functional.relu(self.up(inputs))).mean(1))

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(observed_runs.BATCH, 4, 64)


def training(amp: Amp = MXFP8, **options: Any) -> Training:
    made = Training(Net, amp, make_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1), **options)
    made.observer._gemm_layers = made.precision.gemm_layers
    return made


@pytest.fixture(autouse=True)
def enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_runs, "BATCH", 32)


@pytest.mark.parametrize("name", NAMES)
def test_torchao_has_the_prototype_where_it_is_looked_for(name: str):
    layer = prototypes.Nvfp4Linear.__mro__[1] if name == "nvfp4" else prototypes.MXFP8Linear
    assert f"{layer.__module__}.{layer.__name__}" == FORMATS[name].recipe
    assert torchao.__version__.startswith("0.18.")


def test_torchao_has_operators_of_these_names_that_round_operands():
    places = (
        "mx_formats.kernels",
        *(
            f"moe_training.nvfp4_training.{name}"
            for name in ("hadamard_amax_triton", "hadamard_quantize_row_col_triton", "quantize_2d_triton")
        ),
    )
    sources = "".join(inspect.getsource(importlib.import_module(f"torchao.prototype.{place}")) for place in places)
    assert [name for name in sorted(QUANTIZERS) if f'"torchao::{name}"' not in sources] == []


@pytest.mark.parametrize("version", ["0.17.0", "0.19.0+cu130", "1.18.0"])
def test_another_torchao_is_refused_for_a_prototype(version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchao, "__version__", version)
    expected = f"needs torchao 0.18 (for a prototype in it), and there is {version}: pip install 'torchao==0.18.*'"
    with pytest.raises(SettingsError) as refused:
        Precision(MXFP8, device=CPU).prepare(Net())
    assert expected in str(refused.value)


def test_a_torchao_without_its_kernel_is_refused_in_words():
    assert "no kernel torchao::mxfp8_quantize here; its wheel on PyPI has it for a torch of CUDA 13" in (
        prototypes.mxfp8_problem()
    )


@EAGER_AND_COMPILED
def test_emulated_mxfp8_trains_as_bfloat16_and_is_said_to_be_emulated_and_not_proved(compile: bool):
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs, labels = torch.randn(32, 4, 64), torch.randint(0, 10, (32,))
    emulated, half = (training(amp, compile=compile) for amp in (MXFP8, Amp(level="o2", dtype="bfloat16")))
    losses = []
    for run in (emulated, half):
        for number in range(1, 21):
            with run.observer.step(number) if number <= 3 else contextlib.nullcontext():
                with run.precision:
                    loss = functional.cross_entropy(run.model(inputs).float(), labels)
                run.precision.backward(loss)
                run.precision.step(run.optimizer)
                run.optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] < 2.2
    verdict = observed(emulated.observer.reports)
    assert verdict["verdict"] == "emulated", verdict["why"]
    assert "operands were rounded to float8_e4m3fn and then multiplied in bfloat16" in verdict["why"]
    assert emulated.precision.gemm_layers == (("up", "down"), {"head": "the output layer"})


@pytest.mark.parametrize("convert", [lambda layer: prototypes.to_mxfp8(layer, emulate=True), prototypes.to_nvfp4])
@pytest.mark.parametrize("bias", [True, False])
def test_a_converted_layer_has_the_same_parameters_and_the_state_of_a_linear_layer(convert: Any, bias: bool):
    linear = nn.Linear(128, 256, bias=bias)
    layer = convert(linear)
    assert layer.weight is linear.weight and layer.bias is linear.bias
    assert layer.state_dict().keys() == copy.deepcopy(layer).state_dict().keys() == linear.state_dict().keys()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torchao's operators that round operands, by their names and with the shapes that they return."""
    with torch.library._scoped_library("torchao", "FRAGMENT") as library:

        def define(name: str, arguments: str, results: int, shapes: Callable[..., Any]) -> Any:
            library.define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * results)})")
            torch.library.register_fake(f"torchao::{name}", shapes, lib=library)
            return getattr(torch.ops.torchao, name)

        def packed(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows, columns = tensor.shape
            scales = tensor.new_empty((rows // 128, columns // 64, 32, 16), dtype=E4M3)
            return tensor.new_empty((rows, columns // 2), dtype=torch.uint8), scales

        def both(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
            return *packed(tensor), *packed(tensor.t())

        dim0 = define(
            "triton_to_mxfp8_dim0",
            "Tensor x, int inner_block_size, str scaling_mode",
            2,
            lambda x, *_: (x.new_empty(x.shape, dtype=E4M3), x.new_empty((len(x), x.shape[1] // 32), dtype=E8M0)),
        )
        dim1 = define(
            "mxfp8_quantize",
            "Tensor input, bool rowwise, bool colwise",
            4,
            lambda x, *_: (
                x.new_empty(0, dtype=E4M3),
                x.new_empty(x.t().shape, dtype=E4M3).t(),
                x.new_empty(0, dtype=E8M0),
                x.new_empty((len(x) // 32, x.shape[1]), dtype=E8M0).t(),
            ),
        )
        numbers = "Tensor? col_seed_base, Tensor? col_offset_base, Tensor? row_offset_base, Tensor? row_seed_base"
        rht = define(
            "triton_rht_quantize_row_col",
            "Tensor A, Tensor col_global_amax, Tensor row_global_amax, int[] sign_vector, "
            f"bool stochastic_rounding=False, {', '.join(f'{each}=None' for each in numbers.split(', '))}",
            4,
            lambda a, *_, **__: (*packed(a.t()), *packed(a)),
        )
        weights = define("triton_weight_quantize_2d", "Tensor A, Tensor global_amax", 4, both)
        amax = define(
            "triton_rht_amax",
            "Tensor A, int[] sign_vector",
            2,
            lambda a, *_: (a.new_empty((), dtype=torch.float32), a.new_empty((), dtype=torch.float32)),
        )
        of_mxfp8, of_nvfp4 = (
            f"torchao.prototype.{place}" for place in ("mx_formats", "moe_training.nvfp4_training.nvfp4_linear")
        )
        monkeypatch.setattr(
            f"{of_mxfp8}.mx_tensor.triton_to_mxfp8_dim0",
            lambda x, inner_block_size, scaling_mode: dim0(x, inner_block_size, scaling_mode),
        )
        monkeypatch.setattr(
            f"{of_mxfp8}.kernels.mxfp8_quantize_cuda",
            lambda x, rowwise, colwise, scaling_mode: dim1(x, rowwise, colwise),
        )
        monkeypatch.setattr(f"{of_nvfp4}.triton_rht_amax", amax)
        monkeypatch.setattr(f"{of_nvfp4}.triton_rht_quantize_row_col", rht)
        monkeypatch.setattr(f"{of_nvfp4}.triton_weight_quantize_2d", weights)
        yield


@pytest.mark.parametrize(
    ("gemm", "convert", "weights"),
    [
        ("mxfp8", lambda layer: prototypes.to_mxfp8(layer, emulate=False), torch.bfloat16),
        ("nvfp4", prototypes.to_nvfp4, torch.bfloat16),
        ("nvfp4", prototypes.to_nvfp4, torch.float32),
    ],
)
def test_on_a_gpu_each_role_is_seen_in_its_format_and_proved(
    gemm: str, convert: Any, weights: torch.dtype, kernels: None
):
    first, second = (convert(nn.Linear(*sizes, dtype=weights)) for sizes in ((128, 256), (256, 128)))
    model, layers = nn.Sequential(first, nn.ReLU(), second), ["0", "2"]
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = torch.randn(2, 64, 128, dtype=torch.bfloat16)  # 128 rows in all
        with DispatchObserver(Modules(model), lambda device: None) as observer:
            outputs = model(inputs)
            outputs.float().sum().backward()
    assert outputs.shape == (2, 64, 128)
    assert (dict(observer.unaccounted), observer.guard.problems) == ({}, [])
    work = 2 * 128 * 128 * 256
    assert [(call.use.role, call.use.formats, call.scales, call.flops) for call in observer.calls[:2]] == [
        ("forward", FORMATS[gemm].forward, (FORMATS[gemm].scale,), work)
    ] * 2
    assert {(call.use.role, call.use.layer) for call in observer.calls} == {
        (role, layer) for role in ROLES for layer in layers
    }
    head = [call(backward, role=role, layers=["head"]) for backward, role in ((False, "forward"), (True, ROLES[1]))]
    calls = [{**entry, "device": "cpu"} for entry in _aggregate(observer.calls, layers)]
    rule = {"gemm": {"format": gemm, "layers": layers, "left_out": {"head": "the output layer"}}}
    expect("proved", f"amp.gemm={gemm}: ", report("o2", calls=[*calls, *head], rule=rule))
    rule["gemm"]["format"] = "fp8-rowwise"
    expect("contradicted", "amp.gemm=fp8-rowwise promises", report("o2", calls=[*calls, *head], rule=rule))


FORWARD = """class <lambda>(torch.nn.Module):
    def forward(self, primals_1: "bf16[128, 128]", primals_2: "bf16[128, 128]", one: "f32[]"):
        quantize = torch.ops.torchao.triton_weight_quantize_2d.default(primals_1, one)
        codes: "u8[128, 64]" = quantize[0]
        scales: "f8e4m3fn[1, 2, 32, 16]" = quantize[1]
        turned: "u8[128, 64]" = quantize[2]
        view_1: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(turned, torch.float4_e2m1fn_x2)
        quantize_1 = torch.ops.torchao.triton_rht_quantize_row_col.default(primals_2, one, one, [1], False)
        columns: "u8[128, 64]" = quantize_1[0]
        rows: "u8[128, 64]" = quantize_1[2]
        view_2: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(rows, torch.float4_e2m1fn_x2)
        view_3: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(codes, torch.float4_e2m1fn_x2)
        permute: "f4e2m1fnx2[64, 128]" = torch.ops.aten.permute.default(view_3, [1, 0])
        out: "bf16[128, 128]" = torch.ops.aten._scaled_mm_v2.default(view_2, permute, [scales, one], [], [], [scales])
        return (out, columns, view_1, scales)
"""
BACKWARD = """class <lambda>(torch.nn.Module):
    def forward(self, columns: "u8[128, 64]", view_1: "f4e2m1fnx2[128, 64]", scales: "f8e4m3fn[1, 2, 32, 16]",
                tangents_1: "bf16[128, 128]"):
        quantize = torch.ops.torchao.triton_rht_quantize_row_col.default(tangents_1, scales, scales, [1], True)
        columns_1: "u8[128, 64]" = quantize[0]
        rows: "u8[128, 64]" = quantize[2]
        view: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(rows, torch.float4_e2m1fn_x2)
        permute: "f4e2m1fnx2[64, 128]" = torch.ops.aten.permute.default(view_1, [1, 0])
        of_input: "bf16[128, 128]" = torch.ops.aten._scaled_mm_v2.default(view, permute, [scales], [], [], [scales])
        view_4: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(columns_1, torch.float4_e2m1fn_x2)
        view_5: "f4e2m1fnx2[128, 64]" = torch.ops.aten.view.dtype(columns, torch.float4_e2m1fn_x2)
        permute_1: "f4e2m1fnx2[64, 128]" = torch.ops.aten.permute.default(view_5, [1, 0])
        of_rows: "bf16[128, 128]" = torch.ops.aten._scaled_mm_v2.default(view_4, permute_1, [scales], [], [], [scales])
        return (of_rows, of_input, None)
"""


def test_compiled_nvfp4_is_seen_by_role_too(kernels: None):
    """In graphs as the compiler writes them of eager calls: it leaves these operators whole."""
    layer, inputs, scales = nn.Linear(128, 128, bias=False).bfloat16(), torch.ones(128, 128), torch.ones(1, 2, 32, 16)
    forward, backward = graph_text.parse(FORWARD), graph_text.parse(BACKWARD)
    assert forward.unaccounted == backward.unaccounted == ()
    codes = torch.zeros(128, 64, dtype=torch.uint8)
    compiled = CompiledCalls(Modules(nn.ModuleDict({"layer": layer})))
    calls = compiled.calls(forward, [layer.weight, inputs, torch.ones(())], False)
    calls += compiled.calls(backward, [codes, codes.clone(), scales, inputs], True)
    wanted = FORMATS["nvfp4"]
    assert [(call.use.role, call.use.layer, call.use.formats, call.scales) for call in calls] == [
        (role, "layer", wanted.operands(role), (wanted.scale,)) for role in ROLES
    ]


ROUNDED = """class <lambda>(torch.nn.Module):
    def forward(self, primals_1: "bf16[64, 64]", primals_2: "f8e4m3fn[64, 64]", scales: "f8e8m0fnu[64, 2]"):
        empty: "f8e4m3fn[64, 64]" = torch.ops.aten.empty.memory_format([64, 64], dtype = torch.float8_e4m3fn)
        triton_kernel_wrapper_mutation = torch.ops.higher_order.triton_kernel_wrapper_mutation(kernel_idx = NUMBER, \
constant_args_idx = 2, grid = [(1, 1, 1)], tma_descriptor_metadata = {}, kwargs = {'x_ptr': primals_1, \
'output_ptr': empty});  triton_kernel_wrapper_mutation = None
        out: "bf16[64, 64]" = torch.ops.aten._scaled_mm.default(empty, primals_2, scales, scales)
        return (out,)
"""


def test_compiled_mxfp8_is_unknown_by_the_name_of_the_kernel_that_rounds():
    """A call as torch 2.13's compiler writes one of an operator by `triton_op`, tried with Triton 3.9 on a CPU."""

    class Tuned:  # as Triton's autotuner keeps a kernel
        @staticmethod
        def fn() -> None: ...

    Tuned.fn.__name__ = "to_mxfp8_dim0_kernel"
    number = kernel_side_table.add_kernel(Tuned())
    graph = graph_text.parse(ROUNDED.replace("NUMBER", str(number)))
    assert graph.unaccounted == ("triton.to_mxfp8_dim0_kernel in compiled code",)
    seen = report("o2", unaccounted=dict.fromkeys(graph.unaccounted, 1))
    expect("unknown", "if it multiplies no matrices, say proof.ignore=[triton.to_mxfp8_dim0_kernel]", seen)
    (ignoring,) = operators.ignoring([seen], ["triton.to_mxfp8_dim0_kernel"])
    assert ignoring["unaccounted"] == {}
    assert graph_text.parse(ROUNDED.replace("NUMBER", "999")).unaccounted == ("triton.kernel in compiled code",)
