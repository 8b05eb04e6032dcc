"""Compiled code is watched as what it is: neither replaced by eager code nor taken for what eager code would do."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from recipes.precision.levels import Amp
from recipes.torch_.observe import compiled
from tests.recipes.torch_.observed_runs import BATCH, Cnn, Dense, Training, Transformer, name, observed

pytestmark = [
    pytest.mark.skipif(bool(compiled.missing()), reason="this torch's compiled code can't be read"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
]

O0 = Amp(level="o0")
O1 = Amp(level="o1", dtype="bfloat16")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def run_compiled(make: Callable[[], nn.Module], amp: Amp, **options: Any) -> tuple[Training, dict[str, Any]]:
    training = Training(make, amp, compile=True, **options)
    return training, training.run()


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
    ids=lambda each: name(each) if isinstance(each, Amp) else each.__name__,
)
def test_an_honest_compiled_run_is_proved_from_the_code_that_ran(make: Callable[[], nn.Module], amp: Amp) -> None:
    training, found = run_compiled(make, amp)
    assert found["verdict"] == "proved", found["why"]
    assert found["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)
    for report in training.observer.reports:
        assert {each["compiled"] for each in report["calls"]} == {True}, "no product ran eagerly"


@pytest.mark.parametrize(
    ("make", "amp"),
    [(Cnn, Amp(level="o1", deny=("linear",))), (Dense, Amp(level="o2", keep_fp32=("second",)))],
    ids=["deny", "keep_fp32"],
)
def test_lists_and_kept_modules_are_checked_in_compiled_code(make: Callable[[], nn.Module], amp: Amp) -> None:
    _, found = run_compiled(make, amp)
    assert found["verdict"] == "proved", found["why"]
    assert 0 < found["half_flop_share"] < 1


def test_a_compiled_optimizers_own_products_do_not_count() -> None:
    @torch.compile
    def orthogonalised(gradient: torch.Tensor) -> torch.Tensor:
        half = gradient.bfloat16()
        return (half @ half.t() @ half).to(gradient.dtype)

    class HalfOptimizer(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for each in self.param_groups[0]["params"]:
                if each.ndim == 2:
                    each.grad.add_(orthogonalised(each.grad), alpha=1e-3)
            return super().step(closure)

    training = Training(Dense, O0, make_optimizer=lambda weights: HalfOptimizer(weights, lr=0.01))
    found = training.run(1, watched={1})
    assert (found["verdict"], found["half_flop_share"]) == ("proved", 0.0), found["why"]


def test_compiled_and_eager_count_the_same_work() -> None:
    work = []
    for compile in (False, True):
        training = Training(Cnn, O1, compile=compile)
        training.run(1, watched={1})
        calls = training.observer.reports[0]["calls"]
        work.append({flag: sum(each["flops"] for each in calls if each["backward"] is flag) for flag in (False, True)})
    assert work[0] == work[1]


def test_watching_neither_compiles_anew_nor_runs_eagerly() -> None:
    training = Training(Dense, O1, compile=True)
    training.run(2, watched={1})
    after_watched_first_step = compilations()
    assert after_watched_first_step > 0
    training.run(4, watched={2, 4})
    assert compilations() == after_watched_first_step


def test_watching_a_compiled_run_changes_no_bit() -> None:
    ends = []
    for watched in ((), (1, 3)):
        training = Training(Cnn, O1, compile=True)
        training.run(3, watched)
        ends.append([*training.net.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_batch_of_another_size_is_counted_at_its_own_size() -> None:
    training = Training(Dense, O1, compile=True)
    texts, work = [], []

    @contextlib.contextmanager
    def collect(artifact: Any, inputs: Any) -> Iterator[None]:
        texts.append(artifact.inductor_post_grad_graph_str)
        yield

    for size in (4, 6, 11):
        with compiled.watched(collect), training.observer.step(size), training.precision.forward():
            training.model(torch.randn(size, 32)).float().sum().backward()
        work.append(sum(each["flops"] for each in training.observer.reports[-1]["calls"]))
    forward, backward = 32 * 64 + 64 * 10, 2 * 64 * 10 + 32 * 64
    assert work == [2 * size * (forward + backward) for size in (4, 6, 11)]
    assert "Sym(" in texts[-1], "the code was compiled for any size"


class Upcasts(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = functional.relu(inputs.float() @ self.first.weight.float().t())
        return self.second(hidden.to(self.second.weight.dtype))


def test_compiled_flex_attention_is_counted_by_torchs_formula() -> None:
    """On a CPU it has no backward, so that this is a forward alone."""

    class Attending(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs).view(BATCH, 1, 4, 16).repeat(1, 1, 32, 1)
            return self.second(flex_attention(hidden, hidden, hidden).mean(2).repeat(1, 1, 4).view(BATCH, 64))

    training = Training(Attending, O1, compile=True)
    training.net.eval()
    with torch.no_grad(), training.observer.step(1, evaluation=True), training.precision.forward():
        training.model(Dense.images())
    (report,) = training.observer.reports
    assert report["unaccounted"] == {}
    (call,) = [each for each in report["calls"] if each["operation"] == "flex_attention"]
    assert (call["dtype"], call["flops"]) == ("bfloat16", 2 * BATCH * 2 * 128 * 128 * 16)


@pytest.mark.parametrize("amp", [O1, Amp(level="o3", dtype="bfloat16")], ids=name)
def test_compiled_upcasts_are_contradicted(amp: Amp) -> None:
    _, found = run_compiled(Upcasts, amp)
    assert found["verdict"] == "contradicted", found["why"]
    assert "in float32" in found["why"]


class HalfInside(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second((inputs.bfloat16() @ self.first.weight.bfloat16().t()).float())


def test_compiled_half_precision_under_o0_is_contradicted() -> None:
    _, found = run_compiled(HalfInside, O0)
    assert found["verdict"] == "contradicted", found["why"]


def test_a_function_list_that_compiled_code_says_nothing_of_is_unknown() -> None:
    _, found = run_compiled(Dense, Amp(level="o1", deny=("relu",)))
    assert found["verdict"] == "unknown"
    assert "compiled code doesn't show how it ran" in found["why"]


def test_compiled_code_without_its_graph_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.output_code import CompiledFxGraph

    monkeypatch.delitem(CompiledFxGraph.__annotations__, "inductor_post_grad_graph_str")
    _, found = run_compiled(Dense, O1)
    assert found["verdict"] == "unknown"
    assert "inductor_post_grad_graph_str" in found["why"]


def test_the_backward_of_kept_modules_is_told_apart_when_it_is_half() -> None:
    """What torch does by default: it traces the backward of compiled code under the autocast of its forward."""
    with torch._functorch.config.patch(backward_pass_autocast="same_as_forward"):
        training = Training(Dense, Amp(level="o1", keep_fp32=("second",)))
        training.model = torch.compile(training.net)
        found = training.run()
    assert found["verdict"] == "contradicted"
    assert "linear in bfloat16 (1 call) ran in backward, but amp.keep_fp32=[second] keeps it in float32" in found["why"]
    assert "in backward" in observed(training.observer.reports)["why"]
