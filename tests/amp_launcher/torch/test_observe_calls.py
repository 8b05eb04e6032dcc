"""Which products of an observed step are counted, and which function, module and phase each belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe import dispatch_observer
from tests.amp_launcher.torch.observed_runs import (
    BATCH,
    EVERY_LEVEL,
    Dense,
    HalfOptimizer,
    Training,
    Transformer,
    name,
    observed,
    proved,
    report_of,
    run,
)
from tests.onednn import bfloat16_needed

O0 = Amp(level="o0")
O1 = Amp(level="o1", dtype="bfloat16")


def test_every_product_of_a_step_is_counted_exactly() -> None:
    calls = report_of(Dense, O1)["calls"]
    first, second = 2 * 4 * 32 * 64, 2 * 4 * 64 * 10
    assert {(call["operation"], call["role"]): (call["calls"], call["flops"]) for call in calls} == {
        ("addmm", "forward"): (2, first + second),
        ("mm", "input_gradient"): (1, second),  # the inputs need no gradient
        ("mm", "weight_gradient"): (2, first + second),
    }


class WithoutGradients(Dense):
    """A product without gradients before one with them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        with torch.no_grad():
            size = (hidden.t() @ hidden).mean()
        return self.second(hidden / size)


class OwnWeight(Dense):
    """A weight of the outermost module, whose name is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(super().forward(inputs), self.weight)


def test_gradients_of_a_weight_of_the_whole_model_have_their_roles() -> None:
    roles = {call["role"]: call["calls"] for call in report_of(OwnWeight, O1)["calls"] if call["backward"]}
    assert roles == {"input_gradient": 2, "weight_gradient": 3}


@pytest.mark.parametrize(
    ("make", "forward", "backward"),
    [
        (Transformer, {"linear", "scaled_dot_product_attention"}, {"linear", "scaled_dot_product_attention"}),
        (WithoutGradients, {"linear", "matmul"}, {"linear"}),
    ],
)
def test_gradients_have_the_function_of_their_forward(
    make: Callable[[], nn.Module], forward: set[str], backward: set[str]
) -> None:
    calls = report_of(make, O1)["calls"]
    functions = {(function, call["backward"]) for call in calls for function in call["functions"]}
    assert functions == {(name, False) for name in forward} | {(name, True) for name in backward}
    if make is WithoutGradients:
        assert sum(call["calls"] for call in calls if call["role"] == "weight_gradient") == 2


def kept_elements(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(group["dtype"], group["elements"]) for group in report["parameters"] if group["group"] == "kept"]


def test_keeping_a_container_keeps_all_that_is_in_it() -> None:
    amp = Amp(level="o2", dtype="bfloat16", keep_fp32=("block",))
    block = sum(parameter.numel() for parameter in Transformer().block.parameters())
    assert proved(run(Transformer, amp))["param_dtypes"] == {"float32": block, "bfloat16": 330}


@pytest.mark.skipif(bool(dispatch_observer.missing(compiles=True)), reason="this torch's compiled code can't be read")
def test_kept_modules_have_the_names_from_before_parts_were_compiled() -> None:
    def compile_block(training: Training) -> None:
        training.net.block = torch.compile(training.net.block, backend="eager")

    amp = Amp(level="o2", dtype="bfloat16", keep_fp32=("block.linear1",))
    report = report_of(Transformer, amp, prepare=compile_block)
    assert kept_elements(report) == [("float32", 32 * 64 + 64)]
    assert None in {call["kept"] for call in report["calls"]}, "unknown for code made of several modules"


class Tied(Dense):
    """A weight that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(32, 64)
        self.again.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs) + self.again(inputs))


@pytest.mark.parametrize("keep", ["first", "again"])
def test_a_shared_weight_is_kept_in_float32_if_any_of_its_modules_is(keep: str) -> None:
    report = report_of(Tied, Amp(level="o2", dtype="bfloat16", keep_fp32=(keep,)))
    assert kept_elements(report) == [("float32", 32 * 64 + 64)]


class Checkpointed(Transformer):
    reentrant = False

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.block, sequences.requires_grad_(), use_reentrant=self.reentrant)
        return self.head(hidden.mean(1))


class ReentrantlyCheckpointed(Checkpointed):
    reentrant = True


class Lstm(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 32, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(self.recurrent(inputs.unflatten(1, (4, 8)))[0][:, -1])


RECOMPUTED = itertools.product([Checkpointed, ReentrantlyCheckpointed], [O0, O1, Amp(level="o2", keep_fp32=("head",))])
HALF_O3 = Amp(level="o3", dtype="float16")
RECURRENT = [
    *((Lstm, amp) for amp in (O0, Amp(level="o3"), HALF_O3)),
    *(pytest.param(Lstm, Amp(level=level), marks=bfloat16_needed) for level in ("o1", "o2")),
]


@pytest.mark.parametrize(("make", "amp"), [*RECOMPUTED, *RECURRENT], ids=str)
def test_recomputed_activations_and_recurrent_layers_are_proved(make: Callable[[], nn.Module], amp: Amp) -> None:
    proved(run(make, amp))


class Block(nn.Module):
    """Ends in a product, within which recomputation stops early. A plain one calls `torch.mm`, which autocast
    dispatches once more."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.up, self.down, self.plain = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False), plain

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.plain:
            return torch.mm(functional.silu(torch.mm(inputs, self.up.weight.t())), self.down.weight.t())
        return self.down(functional.silu(self.up(inputs)))


class Blocks(nn.Module):
    images = staticmethod(Dense.images)

    def __init__(self, kept: Any, plain: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(plain), Block(plain))
        self.contexts = partial(create_selective_checkpoint_contexts, [kept]) if kept else noop_context_fn

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + checkpoint(block, inputs, use_reentrant=False, context_fn=self.contexts)
        return inputs[:, :10]


@pytest.mark.parametrize("amp", [O0, O1], ids=name)
@pytest.mark.parametrize(
    ("kept", "plain", "products"),
    [
        (None, False, 4),
        (torch.ops.aten.mm.default, False, 0),
        (torch.ops.aten.mm.default, True, 0),
        (torch.ops.aten.silu.default, False, 4),
    ],
)
def test_of_checkpointed_blocks_what_is_computed_again_counts_and_what_was_kept_does_not(
    kept: Any, plain: bool, products: int, amp: Amp
) -> None:
    training = Training(lambda: Blocks(kept, plain), amp)
    proved(training.run(1, watched={1}))
    calls = training.observer.reports[0]["calls"]
    of_one_product = 2 * BATCH * 32 * 64
    assert sum(call["flops"] for call in calls if call["backward"]) == (7 + products) * of_one_product


@pytest.mark.parametrize("amp", EVERY_LEVEL, ids=name)
def test_the_optimizers_own_products_do_not_count(amp: Amp) -> None:
    result = proved(run(Dense, amp, make_optimizer=HalfOptimizer))
    assert result["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)


def test_a_closure_that_the_optimizer_calls_does_count() -> None:
    training = Training(Dense, O0, make_optimizer=lambda weights: torch.optim.LBFGS(weights, max_iter=2))
    images, labels = Dense.images(), torch.randint(0, 10, (4,))

    def closure() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(images), labels)
        loss.backward()
        return loss

    with training.observer.step(1):
        training.optimizer.step(closure)
    assert proved(observed(training.observer.reports))["half_flop_share"] == 0.0


def test_second_derivatives_count_as_backward() -> None:
    training = Training(Dense, Amp(level="o1", keep_fp32=("first",)))
    images = Dense.images().requires_grad_()
    with training.observer.step(1):
        with training.precision:
            output = training.model(images).float().square().sum()
        (gradient,) = torch.autograd.grad(output, images, create_graph=True)
        gradient.square().sum().backward()
    calls = training.observer.reports[0]["calls"]
    assert {call["kept"] for call in calls} == {True, False}, "each is traced back to its forward call"
    assert all(call["dtype"] == ("float32" if call["kept"] else "bfloat16") for call in calls)


class RotatedGradient(torch.autograd.Function):
    """A product in backward alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ torch.eye(gradient.shape[-1], dtype=gradient.dtype)


@pytest.mark.parametrize(("keep", "kept"), [((), False), (("first",), None)])
def test_the_module_of_a_gradient_without_a_forward_product_is_unknown(keep: tuple[str, ...], kept: Any) -> None:
    class Model(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(RotatedGradient.apply(self.first(inputs)))

    calls = report_of(Model, Amp(level="o1", keep_fp32=keep))["calls"]
    assert [(call["backward"], call["kept"]) for call in calls if len(call["functions"]) > 1] == [(True, kept)]
