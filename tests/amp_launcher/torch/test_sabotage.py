"""Runs that are not in the precision that they claim: none of them may end `proved`."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import Precision
from tests.amp_launcher.torch.observed_runs import EVERY_HALF, Dense, HalfInside, Training, name, run

O0 = Amp(level="o0")
O1 = Amp(level="o1", dtype="bfloat16")
O2 = Amp(level="o2", dtype="bfloat16")
O3 = Amp(level="o3", dtype="bfloat16")


def judged_as(verdict: str, observed: dict[str, Any], *reasons: str) -> None:
    assert observed["verdict"] == verdict, observed
    assert [reason for reason in reasons if reason not in observed["why"]] == [], observed["why"]


class CastsBack(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = functional.relu(inputs.float() @ self.first.weight.float().t())
            return hidden @ self.second.weight.float().t()


class AutocastOffHalfWay(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first(inputs))
        with torch.autocast("cpu", enabled=False):
            return self.second(hidden.float())


@pytest.mark.parametrize("amp", [O1, Amp(level="o1", dtype="float16")], ids=name)
def test_autocast_switched_off_half_way_through_the_run_is_contradicted(amp: Amp) -> None:
    training = Training(Dense, amp)
    training.run(2, watched={1})
    training.precision._mechanism.forward = contextlib.nullcontext  # type: ignore[method-assign]
    judged_as("contradicted", training.run(2, watched={2}), "step 2: 0.0% of forward")


@contextlib.contextmanager
def rounded_float32(backend: Any, precision: str) -> Iterator[None]:
    before = backend.fp32_precision
    backend.fp32_precision = precision
    try:
        yield
    finally:
        backend.fp32_precision = before


SWITCHES = pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="came with torch 2.9")


@SWITCHES
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("backend", ["matmul", "conv"])
def test_float32_that_is_rounded_later_under_o0_is_contradicted(backend: str, precision: str) -> None:
    training = Training(Dense, O0)
    with rounded_float32(getattr(torch.backends.mkldnn, backend), precision):
        judged_as("contradicted", training.run(), f"mkldnn.{backend}.fp32_precision={precision}")


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_matmul_precision_left_low_under_o0_is_contradicted(precision: str) -> None:
    training = Training(Dense, O0)
    torch.set_float32_matmul_precision(precision)
    try:
        judged_as("contradicted", training.run(), "allows o0's float32 products to be rounded")
    finally:
        torch.set_float32_matmul_precision("highest")


class RoundedInside(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with rounded_float32(torch.backends.mkldnn.matmul, "bf16"):
            return super().forward(inputs)


class HidesFromLists(Dense):
    """Calls made with torch functions disabled, which no function mode sees."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return super().forward(inputs)


class NoMatrices(nn.Module):
    images = staticmethod(Dense.images)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.weight)[:, :10]


class RoundTrips(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = inputs.bfloat16().float() @ self.first.weight.bfloat16().float().t()
            return hidden.bfloat16().float() @ self.second.weight.bfloat16().float().t()


class Float32Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs.bfloat16() @ weight.bfloat16().t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        gradient = gradient.float()
        return (gradient @ weight.float()).to(inputs.dtype), (gradient.t() @ inputs.float()).to(weight.dtype)


class HalfForwardOnly(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = Float32Backward.apply(inputs, self.first.weight)
        return Float32Backward.apply(functional.relu(hidden), self.second.weight)


class UnusedDecoys(CastsBack):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        decoy = torch.ones(256, 256, dtype=torch.bfloat16)
        decoy @ decoy
        return super().forward(inputs)


class UsedDecoys(CastsBack):
    def __init__(self) -> None:
        super().__init__()
        self.decoy = nn.Parameter(torch.ones(512, 512))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        decoy = self.decoy.bfloat16()
        return super().forward(inputs) + (decoy @ decoy).sum() * 0


def test_decoys_that_backward_runs_through_are_explained() -> None:
    """They really are half-precision work of the step: all that can be said is what else ran."""
    assert "in other dtypes: matmul in float32" in run(UsedDecoys, O1)["why"]


@torch.library.custom_op("sabotage::linear", mutates_args=())
def hidden_linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return inputs.float() @ weight.float().t()


@hidden_linear.register_fake
def _(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0], dtype=torch.float32)


def _hidden_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, weight = ctx.saved_tensors
    gradient = gradient.to(weight.dtype)
    return (gradient @ weight).to(inputs.dtype), gradient.t() @ inputs.to(weight.dtype)


hidden_linear.register_autograd(
    _hidden_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class CustomOperation(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(hidden_linear(inputs, self.first.weight)).to(self.second.weight.dtype))


class DisablesModes(CastsBack):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            return super().forward(inputs)


class FillsZeros(torch.autograd.Function):
    """Float32 products out of every mode's sight, into memory that an operation in sight has filled."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        result = torch.zeros(len(inputs), len(weight))
        with _disable_current_modes():
            return torch.mm(inputs, weight.t(), out=result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight = torch.zeros_like(inputs), torch.zeros_like(weight)
        with _disable_current_modes():
            return torch.mm(gradient, weight, out=of_inputs), torch.mm(gradient.t(), inputs, out=of_weight)


class HidesBehindZeros(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = FillsZeros.apply(inputs.float(), self.first.weight)
        return self.second(functional.relu(hidden))


def test_the_profiler_alone_sees_products_that_modes_and_memory_do_not() -> None:
    judged_as("unknown", run(HidesBehindZeros, O1), "where the profiler saw mm of float32")


class InAThread(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        results: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: results.append(Dense.forward(self, inputs)))
        thread.start()
        thread.join()
        return results[0]


@pytest.mark.parametrize(
    ("make", "amps"),
    [
        (CustomOperation, [O0, O1, O2, O3]),
        (DisablesModes, [O0, O1, O2, O3]),
        (InAThread, [O0, O1]),  # autocast is of a thread, so under o1 this even trains in float32
    ],
)
def test_products_that_are_hidden_are_never_proved(make: Callable[[], nn.Module], amps: Sequence[Amp]) -> None:
    for amp in amps:
        observed = run(make, amp)
        assert observed["verdict"] != "proved", amp
        if make is DisablesModes:
            assert "observers disagree" in observed["why"] or observed["verdict"] == "contradicted"


def test_o2_run_where_o3_was_asked_for_is_contradicted() -> None:
    training = Training(Dense, O2)
    requested = Precision(O3, device=torch.device("cpu"))
    training.observer = PrecisionObserver(training.net, requested.resolved)
    reason = "the optimizer stepped float32 weights, but o3 has no masters"
    judged_as("contradicted", training.run(), reason)


def round_kept_layers(training: Training) -> None:
    training.net.second.__class__ = nn.Linear
    training.net.to(torch.bfloat16)


def cast_back(training: Training) -> None:
    training.net.float()
    training.net._forward_pre_hooks.clear()


def round_head(training: Training) -> None:
    training.net.second.bfloat16()
    training.net.forward = lambda inputs: functional.linear(
        training.net.first(inputs), training.net.second.weight.float()
    )


def step_without_masters(training: Training) -> None:
    training.optimizer = torch.optim.SGD(training.net.parameters(), lr=0.01)
    training.precision.step = lambda optimizer: optimizer.step()  # type: ignore[method-assign]


KEPT = ("ran in forward, but amp.keep_fp32=[second] keeps it in float32", "parameters kept in float32 are bfloat16")


@pytest.mark.parametrize(
    ("spoil", "amps", "reasons"),
    [
        (round_kept_layers, [Amp(level="o2", keep_fp32=("second",))], KEPT),
        (cast_back, [O2, O3], ["parameters are float32"]),
        (round_head, [O0], ["parameters are bfloat16, such as those of module second, but o0"]),
        (step_without_masters, [O2], ["the optimizer stepped bfloat16 weights"]),
    ],
)
def test_a_model_or_optimizer_changed_after_the_cast_is_contradicted(
    spoil: Callable[[Training], None], amps: Sequence[Amp], reasons: Sequence[str]
) -> None:
    for amp in amps:
        judged_as("contradicted", Training(Dense, amp, prepare=spoil).run(), *reasons)


class HiddenProduct(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return self.second(self.first(inputs) * self.first(inputs).prod(0))


class OtherHalf(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(inputs)


@pytest.mark.parametrize(
    ("make", "amps", "verdict", "reason"),
    [
        (CastsBack, EVERY_HALF, "contradicted", "0.0% of forward"),
        (AutocastOffHalfWay, [O1], "contradicted", "linear in float32"),
        pytest.param(RoundedInside, [O0], "contradicted", "matmul.fp32_precision=bf16", marks=SWITCHES),
        (HidesFromLists, [Amp(level="o1", deny=("linear",))], "contradicted", "linear is on amp.deny"),
        (HidesFromLists, [Amp(level="o2", deny=("relu", "linear"))], "contradicted", "linear is on amp.deny"),
        (HidesFromLists, [Amp(level="o1", deny=("relu",))], "contradicted", "relu is on amp.deny, but ran on bfloat16"),
        (HiddenProduct, [Amp(level="o1", allow=("prod",))], "contradicted", "prod is on amp.allow, but ran on float32"),
        (RoundTrips, EVERY_HALF, "contradicted", "0.0% of forward"),
        (HalfForwardOnly, [O1, O2, O3], "contradicted", "step 1: 0.0% of backward"),
        (UnusedDecoys, EVERY_HALF, "contradicted", "of backward ran in"),
        (HalfInside, [O0], "contradicted", "o0 is float32, but these ran: matmul in bfloat16"),
        (OtherHalf, [Amp(level="o1", dtype="float16")], "contradicted", "linear in bfloat16"),
        (NoMatrices, [O0, *EVERY_HALF], "unknown", "no matrix product or convolution was seen"),
        (CustomOperation, [O0], "unknown", "sabotage.linear.default is unknown to the observer (1 of "),
    ],
)
def test_a_model_that_computes_otherwise_is_never_proved(
    make: Callable[[], nn.Module], amps: Sequence[Amp], verdict: str, reason: str
) -> None:
    for amp in amps:
        judged_as(verdict, run(make, amp), reason)
