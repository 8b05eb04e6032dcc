"""The role and the layer of real products, in eight bits by torchao and otherwise, where sizes show nothing."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from amp_launcher.precision import verdict as verdicts
from amp_launcher.precision.gemm import FORMATS, ROLES
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.levels import Amp
from amp_launcher.precision.observation import Guard
from amp_launcher.recipes.gpt.train_torch import KEPT
from amp_launcher.torch.observe import compiled, graph_text
from amp_launcher.torch.observe.compiled_calls import CompiledCalls
from amp_launcher.torch.observe.dispatch_observer import DispatchObserver
from amp_launcher.torch.observe.modules import Modules
from tests.amp_launcher.torch import observed_runs
from tests.amp_launcher.torch.observed_runs import Training

float8 = pytest.importorskip("torchao.float8")

O2 = Amp(level="o2", dtype="bfloat16")
ROWS, WIDTH = 16, 32
ONE = 2 * ROWS * WIDTH * WIDTH
"""The work of one product of a square layer."""
LAYERS = ("first", "second", "third")


class Square(nn.Module):
    """Layers of one size, two of them on the same input, with attention between them and a head."""

    def __init__(self, recompute: str = "none") -> None:
        super().__init__()
        self.recompute = recompute
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second, self.third = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def block(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = (self.second(inputs) @ inputs.t()).softmax(-1)
        return scores @ self.third(inputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first(inputs.to(self.first.weight.dtype)))
        if self.recompute == "none":
            return self.head(self.block(hidden))
        if self.recompute == "selective":
            kept = functools.partial(create_selective_checkpoint_contexts, list(KEPT))
            return self.head(checkpoint(self.block, hidden, use_reentrant=False, context_fn=kept))
        return self.head(checkpoint(self.block, hidden, use_reentrant=self.recompute == "reentrant"))

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(ROWS, WIDTH)


@pytest.fixture(autouse=True)
def enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_runs, "BATCH", ROWS)


def convert(config: Any = None, names: Sequence[str] = LAYERS) -> Callable[[Training], None]:
    """A function that puts the layers of these names in eight bits by torchao; by default with a scale a tensor."""
    return lambda training: float8.convert_to_float8_training(
        training.net, config=config, module_filter_fn=lambda module, name: name in names
    )


def in_format(gemm: str) -> Callable[[Training], None]:
    return convert(float8.Float8LinearConfig.from_recipe_name(FORMATS[gemm].recipe))


def watched(prepare: Callable[[Training], None], make: Callable[[], nn.Module] = Square, **options: Any) -> Training:
    """One observed step."""
    training = Training(make, O2, prepare=prepare, **options)
    training.observer._gemm_layers = Chosen(LAYERS, {})
    with training.observer.step(1):
        training.step()
    return training


def judged(training: Training, gemm: str = "fp8-tensorwise") -> dict[str, Any]:
    for report in training.observer.reports:
        report["rule"]["gemm"] = {"format": gemm, "layers": list(LAYERS), "left_out": {"head": "too narrow"}}
    return verdicts.observed(training.observer.reports)


def work(training: Training, layers: tuple[str, ...] = LAYERS) -> dict[tuple[str, str], int]:
    """FLOPs of these layers by role and operands."""
    total: dict[tuple[str, str], int] = {}
    for call in training.observer.reports[0]["calls"]:
        if set(call["layers"]) & set(layers):
            key = call["role"], " x ".join(call["operands"])
            total[key] = total.get(key, 0) + call["flops"]
    return total


def operands_of(gemm: str) -> dict[str, tuple[str, str]]:
    """By role, the key in `work` that its format promises."""
    return {role: (role, " x ".join(FORMATS[gemm].operands(role))) for role in ROLES}


@pytest.mark.parametrize("recompute", ["none", "free", "reentrant", "selective"])
@pytest.mark.parametrize("gemm", [name for name, format in FORMATS.items() if format.cpu == "yes"])
def test_each_role_runs_in_what_its_format_promises(gemm: str, recompute: str) -> None:
    training, expected = watched(in_format(gemm), lambda: Square(recompute)), operands_of(gemm)
    again = 2 * ONE if recompute in ("free", "reentrant") else 0
    assert work(training) == {key: 3 * ONE + again * (role == "forward") for role, key in expected.items()}
    assert judged(training, gemm)["verdict"] == "proved", judged(training, gemm)["why"]


@pytest.mark.skipif(bool(compiled.missing()), reason="this torch's compiled code can't be read")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.usefixtures("calls_for_kernels")
@pytest.mark.parametrize(("gemm", "recompute"), [("fp8-tensorwise", "none"), ("fp8-rowwise-gw-hp", "free")])
def test_compiled_code_shows_the_same_roles(gemm: str, recompute: str) -> None:
    torch._dynamo.reset()
    training, expected = watched(in_format(gemm), lambda: Square(recompute), compile=True), operands_of(gemm)
    assert {call["compiled"] for call in training.observer.reports[0]["calls"]} == {True}
    counted = work(training)
    assert counted.pop(expected["forward"]) >= 3 * ONE
    assert counted == {expected["input_gradient"]: 2 * ONE, expected["weight_gradient"]: 3 * ONE}
    assert judged(training, gemm)["verdict"] == "proved", judged(training, gemm)["why"]


FORWARD = """class <lambda>(torch.nn.Module):
    def forward(self, primals_1: "bf16[8, 8]", primals_2: "bf16[4, 8]"{state}):
        permute: "bf16[8, 8]" = torch.ops.aten.permute.default(primals_1, [1, 0])
        mm: "bf16[4, 8]" = torch.ops.aten.mm.default(primals_2, permute)
        return (mm, primals_2, permute)
"""
BACKWARD = """class <lambda>(torch.nn.Module):
    def forward(self, primals_2: "bf16[4, 8]", permute: "bf16[8, 8]"{before}, tangents_1: "bf16[4, 8]"{after}):
        permute_1: "bf16[8, 4]" = torch.ops.aten.permute.default(tangents_1, [1, 0])
        mm_1: "bf16[8, 8]" = torch.ops.aten.mm.default(permute_1, primals_2)
        permute_2: "bf16[8, 8]" = torch.ops.aten.permute.default(permute, [1, 0])
        mm_2: "bf16[4, 8]" = torch.ops.aten.mm.default(tangents_1, permute_2)
        return (mm_1, mm_2)
"""


@pytest.mark.parametrize(
    ("state", "before", "after"),
    [
        ("", "", ""),
        ("", ', rng_state_output_0: "u8[5056]"', ""),  # a CPU's
        (", fwd_rng_state_0", "", ", bwd_rng_state_0"),  # a GPU's
    ],
)
def test_random_states_do_not_part_compiled_code_from_its_forward(state: str, before: str, after: str) -> None:
    layer = nn.Linear(8, 8, bias=False)
    inputs, random = torch.ones(4, 8), torch.zeros(5056, dtype=torch.uint8)
    compiled_calls = CompiledCalls(Modules(nn.ModuleDict({"layer": layer})))
    (forward,) = compiled_calls.calls(graph_text.parse(FORWARD.format(state=state)), [layer.weight, inputs], False)
    backward = graph_text.parse(BACKWARD.format(before=before, after=after))
    given = [inputs, layer.weight, *([random] if before else []), torch.ones(4, 8)]
    calls = [forward, *compiled_calls.calls(backward, given, True)]
    assert [(call.use.role, call.use.layer) for call in calls] == [
        ("forward", "layer"),
        ("weight_gradient", "layer"),
        ("input_gradient", "layer"),
    ]


def test_a_product_scaled_by_rows_and_columns_stays_the_one_that_is_returned() -> None:
    text = """class <lambda>(torch.nn.Module):
    def forward(self, left: "f8e4m3fn[4, 8]", right: "f8e4m3fn[8, 4]", one: "f32[]", scales: "f32[4, 4]"):
        _scaled_mm: "bf16[4, 4]" = torch.ops.aten._scaled_mm.default(left, right, one, one, None, None, torch.bfloat16)
        mul: "f32[4, 4]" = torch.ops.aten.mul.Tensor(_scaled_mm, scales)
        return (mul,)
"""
    assert graph_text.parse(text).returned == (("_scaled_mm",),)


def test_attention_under_a_gpus_random_state_is_counted() -> None:
    values = ", ".join(f'{name}: "bf16[1, 2, 16, 8]"' for name in ("query", "key", "value"))
    call = "torch.ops.aten._scaled_dot_product_flash_attention.default, query, key, value, 0.0, True"
    text = f"""class <lambda>(torch.nn.Module):
    def forward(self, {values}, fwd_rng_state_0):
        attention = torch.ops.higher_order.graphsafe_run_with_rng_state({call}, rng_state = fwd_rng_state_0)
        return (attention,)
"""
    graph = graph_text.parse(text)
    assert [product.operation for product in graph.products] == ["_scaled_dot_product_flash_attention"]
    assert not graph.unaccounted


def test_products_without_weights_are_of_no_layer() -> None:
    calls = watched(lambda training: None).observer.reports[0]["calls"]
    attention = [call for call in calls if not call["layers"]]
    assert {(call["role"], call["calls"]) for call in attention} == {("forward", 2), ("input_gradient", 4)}


def test_half_precision_has_roles_too() -> None:
    training = watched(lambda training: None)
    pair = "bfloat16 x bfloat16"
    assert work(training)[("forward", pair)] == 3 * ONE
    assert work(training)[("input_gradient", pair)] == 2 * ONE, "the inputs need no gradient"
    assert work(training)[("weight_gradient", pair)] == 3 * ONE


class Wide(Square):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)


def put_back(training: Training) -> None:
    convert()(training)
    plain = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
    plain.weight, plain.bias = training.net.second.weight, training.net.second.bias
    training.net.second = plain


@pytest.mark.parametrize(
    ("prepare", "make", "verdict", "reasons"),
    [
        (
            convert(float8.Float8LinearConfig(emulate=True)),
            Square,
            "emulated",
            ["rounded to float8_e4m3fn and then multiplied in float32"],
        ),
        (lambda training: None, Square, "contradicted", ["0.0% of forward ran in float8_e4m3fn"]),
        (convert(names=("layers.0", "layers.1")), Square, "contradicted", []),
        (
            convert(names=(*LAYERS, "head")),
            Wide,
            "contradicted",
            ["head ran in float8_e4m3fn, but amp.gemm=fp8-tensorwise is not for it"],
        ),
        (put_back, Square, "contradicted", ["66.6% of forward ran in float8_e4m3fn", "; second ran in bfloat16"]),
        (
            in_format("fp8-rowwise"),
            Square,
            "contradicted",
            ["ran in float8_e4m3fn, but amp.gemm=fp8-tensorwise promises float8_e5m2"],
        ),
    ],
    ids=["emulated", "bfloat16", "no layer of that name", "a layer left out", "a layer put back", "another format"],
)
def test_products_in_another_format_than_asked_for_are_never_proved(
    prepare: Callable[[Training], None], make: Callable[[], nn.Module], verdict: str, reasons: Sequence[str]
) -> None:
    observed = judged(watched(prepare, make))
    assert observed["verdict"] == verdict
    assert [reason for reason in reasons if reason not in observed["why"]] == [], observed["why"]


def test_eight_bits_without_amp_gemm_are_contradicted() -> None:
    training = watched(convert())
    observed = verdicts.observed(training.observer.reports)
    assert (observed["verdict"], "narrower than amp=o2 asks for" in observed["why"]) == ("contradicted", True)


def test_numbers_of_another_threads_products_hide_no_layer() -> None:
    """Autograd numbers the nodes of each thread anew, and a GPU's backward has a thread of its own."""
    model, guard = Square(), Guard()
    mode = DispatchObserver(Modules(model), lambda device: None, guard)
    first = torch.autograd._get_sequence_nr()

    def multiply() -> None:
        weight = nn.Parameter(torch.ones(2, 2))
        while torch.autograd._get_sequence_nr() < first:  # in the whole suite there are many
            weight.t()
        while torch.autograd._get_sequence_nr() < first + 100:
            mode.roles.record([weight, weight @ weight], 0, Modules(model).running())

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    with mode:
        model(torch.randn(ROWS, WIDTH)).sum().backward()
    gradients = [call.use.layer for call in mode.calls if call.use.role == "weight_gradient"]
    assert sorted(map(str, gradients)) == sorted((*LAYERS, "head")) and not guard.problems
    assert all(call.use.layer == mode.calls[call.origin].use.layer for call in mode.calls if call.backward)
