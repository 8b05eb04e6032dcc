"""Compiled code is observed as it runs: neither replaced by eager code nor judged by what eager code would do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe import compiled
from tests.amp_launcher.torch.loops import same
from tests.amp_launcher.torch.observed_runs import (
    BATCH,
    Cnn,
    Dense,
    HalfInside,
    HalfOptimizer,
    Training,
    Transformer,
    name,
    orthogonalized,
    proved,
    report_of,
    run,
    trained_state,
)

pytestmark = [
    pytest.mark.skipif(bool(compiled.missing()), reason="this torch's compiled code can't be read"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
    pytest.mark.usefixtures("calls_for_kernels"),
]

O0 = Amp(level="o0")
O1 = Amp(level="o1", dtype="bfloat16")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compilations() -> int:
    return (
        counters["stats"]["unique_graphs"]
        + counters["aot_autograd"]["total"]
        + counters["inductor"]["fxgraph_cache_miss"]
    )


@pytest.mark.parametrize(
    ("make", "amp"),
    [
        (Dense, O0),
        (Cnn, O1),
        (Transformer, Amp(level="o2", dtype="bfloat16")),
        (Dense, Amp(level="o2", dtype="float16")),
        (Dense, Amp(level="o3", dtype="bfloat16")),
    ],
    ids=lambda value: name(value) if isinstance(value, Amp) else value.__name__,
)
def test_an_honest_compiled_run_is_proved_from_the_code_that_ran(make: Callable[[], nn.Module], amp: Amp) -> None:
    training = Training(make, amp, compile=True)
    assert proved(training.run())["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)
    for report in training.observer.reports:
        assert {call["compiled"] for call in report["calls"]} == {True}, "no product ran eagerly"


def test_a_backward_that_compiled_autograd_compiles_is_proved() -> None:
    training = Training(Dense, O1, compile=True)
    with compiled_autograd._enable(torch.compile):
        assert proved(training.run(4, watched={2, 4}))["half_flop_share"] == 1.0


@pytest.mark.parametrize(
    ("make", "amp"),
    [(Cnn, Amp(level="o1", deny=("linear",))), (Dense, Amp(level="o2", keep_fp32=("second",)))],
    ids=["deny", "keep_fp32"],
)
def test_lists_and_kept_modules_are_checked_in_compiled_code(make: Callable[[], nn.Module], amp: Amp) -> None:
    assert 0 < proved(run(make, amp, compile=True))["half_flop_share"] < 1


def test_a_compiled_optimizers_own_products_do_not_count() -> None:
    def compiled_optimizer(weights: Any) -> HalfOptimizer:
        return HalfOptimizer(weights, torch.compile(orthogonalized))

    training = Training(Dense, O0, make_optimizer=compiled_optimizer)
    assert proved(training.run(1, watched={1}))["half_flop_share"] == 0.0


def test_compiled_and_eager_count_the_same_work() -> None:
    eager, compiled = (report_of(Cnn, O1, compile=compile)["calls"] for compile in (False, True))
    for backward in (False, True):
        work = [sum(call["flops"] for call in calls if call["backward"] is backward) for calls in (eager, compiled)]
        assert work[0] == work[1]


def test_observing_neither_compiles_anew_nor_runs_eagerly() -> None:
    training = Training(Dense, O1, compile=True)
    training.run(2, watched={1})
    after_first_step = compilations()
    assert after_first_step > 0
    training.run(4, watched={2, 4})
    assert compilations() == after_first_step


def test_observing_a_compiled_run_changes_no_bit() -> None:
    assert same(*(trained_state(Cnn, O1, steps, compile=True) for steps in ((), (1, 3))))


def test_a_batch_of_another_size_is_counted_at_its_own_size() -> None:
    training = Training(Dense, O1, compile=True)
    texts, work = [], []

    def collect(artifact: Any, inputs: Any, run: Callable[[], Any]) -> Any:
        texts.append(artifact.inductor_post_grad_graph_str)
        return run()

    for size in (4, 6, 11):
        with compiled.watched(collect), training.observer.step(size), training.precision:
            training.model(torch.randn(size, 32)).float().sum().backward()
        work.append(sum(call["flops"] for call in training.observer.reports[-1]["calls"]))
    forward, backward = 32 * 64 + 64 * 10, 2 * 64 * 10 + 32 * 64
    assert work == [2 * size * (forward + backward) for size in (4, 6, 11)]
    assert "Sym(" in texts[-1], "the code was compiled for any size"


def test_compiled_flex_attention_is_counted_by_torchs_formula() -> None:
    """On a CPU it has no backward, so that this is a forward alone."""

    class Attending(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs).view(BATCH, 1, 4, 16).repeat(1, 1, 32, 1)
            return self.second(flex_attention(hidden, hidden, hidden).mean(2).repeat(1, 1, 4).view(BATCH, 64))

    training = Training(Attending, O1, compile=True)
    training.net.eval()
    with torch.no_grad(), training.observer.step(1, evaluation=True), training.precision:
        training.model(Dense.images())
    (report,) = training.observer.reports
    assert report["unaccounted"] == {}
    (call,) = [call for call in report["calls"] if call["operation"] == "flex_attention"]
    assert (call["dtype"], call["flops"]) == ("bfloat16", 2 * BATCH * 2 * 128 * 128 * 16)


class Attends(nn.Module):
    """Two layers of attention with dropout, for which a CPU has no fused kernel, over [batch, 12, 32]."""

    masked = True

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 96), nn.Linear(32, 96)])
        self.head = nn.Linear(32, 10)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            query, key, value = (part.view(BATCH, 12, 4, 8).transpose(1, 2) for part in layer(sequences).split(32, 2))
            sequences = self.attend(query, key, value).transpose(1, 2).reshape(BATCH, 12, 32)
        return self.head(sequences.mean(1))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=self.masked)

    images = staticmethod(Transformer.images)


class AttendsWithoutMask(Attends):
    masked = False


class AttendsByHand(Attends):
    """The same products in float32, asked for by the script."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            scores = (query.float() * 0.6 @ (key.float() * 0.6).transpose(-2, -1)).softmax(-1)
            return functional.dropout(scores, 0.1) @ value.float()


@pytest.mark.parametrize("make", [Attends, AttendsWithoutMask])
@pytest.mark.parametrize("amp", [O1, Amp(level="o2", dtype="bfloat16")], ids=["o1", "o2"])
def test_attention_that_torch_computes_in_float32_is_counted_apart_as_in_eager_code(
    make: Callable[[], nn.Module], amp: Amp
) -> None:
    for compile in (False, True):
        observed = proved(run(make, amp, compile=compile))
        assert "scaled_dot_product_attention in float32 (24 calls)" in observed["why"], (compile, observed["why"])


def test_attention_in_float32_by_hand_is_no_attention_of_torchs() -> None:
    observed = run(AttendsByHand, O1, compile=True)
    assert observed["verdict"] == "contradicted" and "in float32 (12 calls)" in observed["why"], observed["why"]


class Upcasts(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = functional.relu(inputs.float() @ self.first.weight.float().t())
        return self.second(hidden.to(self.second.weight.dtype))


@pytest.mark.parametrize(
    ("make", "amp", "verdict", "why"),
    [
        (Upcasts, O1, "contradicted", "in float32"),
        (Upcasts, Amp(level="o3", dtype="bfloat16"), "contradicted", "in float32"),
        (HalfInside, O0, "contradicted", "in bfloat16"),
        (Dense, Amp(level="o1", deny=("relu",)), "unknown", "compiled code doesn't show how it ran"),
    ],
    ids=["float32 at o1", "float32 at o3", "half precision at o0", "a denied function"],
)
def test_compiled_code_that_computes_otherwise_or_does_not_show_it_is_not_proved(
    make: Callable[[], nn.Module], amp: Amp, verdict: str, why: str
) -> None:
    result = run(make, amp, compile=True)
    assert (result["verdict"], why in result["why"]) == (verdict, True), result["why"]


def test_compiled_code_without_its_graph_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.output_code import CompiledFxGraph

    monkeypatch.delitem(CompiledFxGraph.__annotations__, "inductor_post_grad_graph_str")
    result = run(Dense, O1, compile=True)
    assert (result["verdict"], "inductor_post_grad_graph_str" in result["why"]) == ("unknown", True)


def test_a_half_precision_backward_of_kept_modules_is_contradicted() -> None:
    """What torch does by default: it traces the backward of compiled code under the autocast of its forward."""
    with torch._functorch.config.patch(backward_pass_autocast="same_as_forward"):
        training = Training(Dense, Amp(level="o1", keep_fp32=("second",)))
        torch._functorch.config.backward_pass_autocast = "same_as_forward"  # again: a precision switches it off
        training.model = torch.compile(training.net)
        result = training.run()
    assert result["verdict"] == "contradicted"
    why = "linear in bfloat16 (1 call) ran in backward, but amp.keep_fp32=[second] keeps it in float32"
    assert why in result["why"]
