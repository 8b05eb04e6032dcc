"""What the observer reports of honest runs, and that observing changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.observe import compiled, dispatch_observer
from recipes.trainer.training import choose_steps
from tests.recipes.torch_.observed_runs import (
    BATCH,
    EVERY_LEVEL,
    Cnn,
    Dense,
    GroupedConvolutions,
    Training,
    Transformer,
    name,
    observed,
    proved,
    report_of,
    run,
    trained_state,
)

O0 = Amp(level="o0")
O1 = Amp(level="o1", dtype="bfloat16")


@pytest.mark.parametrize("amp", EVERY_LEVEL, ids=name)
@pytest.mark.parametrize("make", [Cnn, Transformer, GroupedConvolutions])
def test_an_honest_run_is_proved(make: Callable[[], nn.Module], amp: Amp) -> None:
    training = Training(make, amp)
    result = proved(training.run())
    float32 = amp.level == "o0"
    dtype = "float32" if float32 else amp.dtype
    assert (result["dtype"], result["half_flop_share"]) == (dtype, 0.0 if float32 else 1.0)
    assert (result["device"], result["xla_clusters"], result["tf32"]) == ("cpu", None, False if float32 else None)
    rule = training.observer.reports[0]["rule"]
    assert (rule["level"], rule["dtype"], rule["masters"]) == (amp.level, dtype, amp.level == "o2")
    elements = result["param_dtypes"]
    assert sum(elements.values()) == sum(parameter.numel() for parameter in make().parameters())
    if make is GroupedConvolutions:
        norms = 2 * 32  # weight and bias
        assert elements.get("float32", 0) == {"o2": norms, "o3": 0}.get(amp.level, sum(elements.values()))


@pytest.mark.parametrize(
    "amp",
    [
        Amp(level="o1", deny=("conv2d",)),
        Amp(level="o1", deny=("linear",)),
        Amp(level="o2", deny=("linear", "relu")),
        Amp(level="o1", allow=("dropout",), deny=("depthwise_conv2d",), keep_fp32=("7",)),
        Amp(level="o1", keep_fp32=("1*",)),
        Amp(level="o2", keep_fp32=("7", "10")),
        Amp(level="o3", keep_fp32=("0",)),
    ],
    ids=str,
)
def test_what_a_list_or_pattern_keeps_in_float32_lowers_the_share_and_is_no_contradiction(amp: Amp) -> None:
    result = proved(run(Cnn, amp))
    assert 0 < result["half_flop_share"] < 1
    assert "kept in float32 as requested: " in result["why"]


FUNCTIONS = {
    "cross_entropy": lambda hidden: functional.cross_entropy(hidden, torch.zeros(len(hidden), dtype=torch.long)),
    "logsigmoid": functional.logsigmoid,
    "multi_dot": lambda hidden: torch.linalg.multi_dot([hidden, hidden.t(), hidden]),
    "nll_loss": lambda hidden: functional.nll_loss(hidden, torch.zeros(len(hidden), dtype=torch.long)),
    "norm": lambda hidden: hidden.norm(dim=1, keepdim=True),
    "relu": lambda hidden: functional.relu(hidden.clone(), inplace=True),
    "softmax": lambda hidden: hidden.softmax(-1),
    "sub": lambda hidden: 1 - hidden,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_of_a_listed_function_are_recognized_whatever_torch_calls_its_operation(function: str) -> None:
    class Model(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            return self.second(hidden + FUNCTIONS[function](hidden))

    training = Training(Model, Amp(level="o1", deny=(function,)))
    proved(training.run(1, watched={1}))
    (entry,) = training.observer.reports[0]["listed"]
    assert (entry["function"], {*entry["dtypes"]}) == (function, {"float32"})


@pytest.mark.parametrize("function", ["interpolate", "normalize", "local_response_norm"])
def test_a_listed_function_that_is_only_python_is_unknown(function: str) -> None:
    result = run(Dense, Amp(level="o1", deny=(function,)))
    assert result["verdict"] == "unknown"
    assert f"{function} is on amp.deny, but its calls can't be distinguished" in result["why"]


class Unused(Dense):
    """A layer that only evaluation calls."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(10, 10)
        self.softmax = nn.Softmax(-1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = super().forward(inputs)
        return logits if self.training else self.spare(self.softmax(logits))


@pytest.mark.parametrize(
    ("amp", "entry"),
    [
        (Amp(level="o1", deny=("matmul",)), "amp.deny=[matmul]"),
        (Amp(level="o2", allow=("softmax",)), "amp.allow=[softmax]"),
        (Amp(level="o2", keep_fp32=("spare",)), "amp.keep_fp32=[spare]"),
        (Amp(level="o3", keep_fp32=("softmax",)), "amp.keep_fp32=[softmax]"),
    ],
    ids=str,
)
def test_an_entry_of_the_lists_that_nothing_matched_is_unknown_unless_evaluation_does(amp: Amp, entry: str) -> None:
    training = Training(Unused, amp)
    result = training.run(2, watched={1, 2})
    assert (result["verdict"], entry in result["why"]) == ("unknown", True), result["why"]
    training.net.eval()
    with training.observer.step(2, evaluation=True), torch.no_grad(), training.precision.forward():
        training.model(training.precision.input(Unused.images()))
    result = observed(training.observer.reports, {1, 2})
    if "matmul" in entry:
        assert (result["verdict"], entry in result["why"]) == ("unknown", True), result["why"]
    else:
        assert proved(result)["why"].count("steps 1, 2 on 1 rank") == 1


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
            hidden.t() @ hidden
        return self.second(hidden)


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


@pytest.mark.parametrize("amp", [O0, O1, Amp(level="o3", dtype="bfloat16")], ids=name)
@pytest.mark.parametrize("make", [Checkpointed, ReentrantlyCheckpointed, Lstm])
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


class HalfOptimizer(torch.optim.SGD):
    """Orthogonalises gradients in bfloat16 products, as Muon does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and parameter.ndim == 2:
                gradient = parameter.grad.bfloat16()
                parameter.grad.add_((gradient @ gradient.t() @ gradient).to(parameter.dtype), alpha=1e-3)
        return super().step(closure)


@pytest.mark.parametrize("amp", EVERY_LEVEL, ids=name)
def test_the_optimizers_own_products_do_not_count(amp: Amp) -> None:
    result = proved(run(Dense, amp, make_optimizer=lambda weights: HalfOptimizer(weights, lr=0.01)))
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
        with training.precision.forward():
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


class Activations(Dense):
    """Whose gradients torch could also compose of other operations."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(functional.mish(functional.silu(self.first(inputs))))


@pytest.mark.parametrize(
    ("make", "amp"),
    [
        *((Cnn, amp) for amp in (*EVERY_LEVEL, Amp(level="o2", keep_fp32=("7",), deny=("conv2d",)))),
        (Activations, O1),
    ],
    ids=lambda value: name(value) if isinstance(value, Amp) else value.__name__,
)
def test_observing_leaves_weights_optimizer_and_random_numbers_bit_identical(
    make: Callable[[], nn.Module], amp: Amp
) -> None:
    unobserved, state = (trained_state(make, amp, steps) for steps in ((), (1, 2, 3)))
    assert all(torch.equal(*pair) for pair in zip(unobserved, state, strict=True))


def test_an_overflow_that_skips_the_step_leaves_masters_unseen_until_one_is_taken() -> None:
    amp = Amp(level="o2", dtype="float16")
    training = Training(Dense, amp, scale=LossScale(mode="dynamic", init=2.0**40, backoff=2.0**-32))
    skipped = training.run(1, watched={1})
    assert (skipped["verdict"], "masters weren't seen" in skipped["why"]) == ("unknown", True)
    proved(training.run(2, watched={2}))


def test_weights_that_the_optimizer_has_and_does_not_step_do_not_count() -> None:
    training = Training(Dense, Amp(level="o2"))
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]})
    proved(training.run(1, watched={1}))


def test_a_step_that_raises_is_not_reported_and_leaves_nothing_behind() -> None:
    class Broken(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(inputs)

    artifact = compiled._artifact()
    before = vars(artifact)["__call__"] if artifact else None
    training = Training(Dense, O1)
    for model, error in ((training.model, ZeroDivisionError), (Broken(), RuntimeError)):
        training.model = model
        with pytest.raises(error, match=r"the step's own|shapes cannot be multiplied"), training.observer.step(1):
            training.step()
            raise ZeroDivisionError("the step's own")
        assert training.observer.reports == []
        assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks
        assert before is None or vars(artifact)["__call__"] is before
        assert not torch.autograd._profiler_enabled()
    training.model = training.net
    proved(training.run(2, watched={2}))


def test_reports_are_json() -> None:
    report = report_of(Transformer, Amp(level="o1", deny=("layer_norm",), keep_fp32=("head",)))
    assert json.loads(json.dumps(report)) == report


def test_a_profiler_of_the_users_own_leaves_no_second_observer() -> None:
    training = Training(Dense, O1)
    with torch.autograd.profiler.profile() as users:
        result = training.run(1, watched={1})
    assert any(average.key == "aten::addmm" for average in users.key_averages()), "and theirs goes on"
    assert result["verdict"] == "unknown"
    assert "no second observer: another profiler is at work" in result["why"]


@pytest.mark.parametrize(
    "missing",
    [
        "torch._C._current_graph_task_id",
        "torch._C._current_autograd_node",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
        "torch.autograd._get_sequence_nr",
        "torch.autograd._profiler_enabled",
        "recipes.torch_.observe.profiler_audit.read",
    ],
)
def test_without_a_name_that_the_observer_needs_training_goes_on_and_is_unknown(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unobserved, training = (Training(Dense, Amp(level="o1", deny=("relu",))) for _ in range(2))
    torch.manual_seed(1)
    unobserved.run(3, watched=())
    monkeypatch.delattr(missing)
    torch.manual_seed(1)
    result = training.run(3, watched={1, 3})
    assert (result["verdict"], missing.rpartition(".")[2] in result["why"]) == ("unknown", True), result["why"]
    assert all(map(torch.equal, training.net.parameters(), unobserved.net.parameters()))


@pytest.mark.parametrize(("total", "first"), [(1, 1), (2, 1), (168, 1), (168, 101), (10_000, 10_000), (10, 11)])
def test_the_steps_chosen_are_the_first_the_last_and_one_between(total: int, first: int) -> None:
    for seed in range(20):
        steps = choose_steps(total, seed, first)
        assert {first, total} <= steps or (first > total and not steps)
        assert len(steps) <= 3 and all(first <= step <= total for step in steps)


def test_the_step_between_is_a_function_of_the_seed_and_of_the_number_of_steps() -> None:
    assert choose_steps(1000, 7) == choose_steps(1000, 7)
    assert len({frozenset(choose_steps(1000, seed)) for seed in range(50)}) > 40
    assert len({frozenset(choose_steps(total, 7) - {total}) for total in range(1000, 1050)}) > 40
