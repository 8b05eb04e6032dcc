"""What the observer says of honest runs, and that watching changes nothing."""

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
    EVERY_HALF,
    EVERY_LEVEL,
    Cnn,
    Dense,
    GroupedConvolutions,
    Training,
    Transformer,
    name,
    observed,
    run,
)

O1 = Amp(level="o1", dtype="bfloat16")
LEVELS = pytest.mark.parametrize("amp", EVERY_LEVEL, ids=name)
HONEST = pytest.mark.parametrize("make", [Cnn, Transformer, GroupedConvolutions])


@LEVELS
@HONEST
def test_an_honest_run_is_proved(make: Callable[[], nn.Module], amp: Amp) -> None:
    found = run(make, amp)
    assert found["verdict"] == "proved", found["why"]
    assert found["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)
    assert found["dtype"] == ("float32" if amp.level == "o0" else amp.dtype)
    assert found["device"] == "cpu"
    assert found["xla_clusters"] is None
    assert found["tf32"] is (False if amp.level == "o0" else None)


@pytest.mark.parametrize(
    ("level", "dtypes"),
    [("o0", {"float32"}), ("o1", {"float32"}), ("o2", {"float32", "bfloat16"}), ("o3", {"bfloat16"})],
)
def test_parameter_dtypes_are_counted_in_elements(level: Any, dtypes: set[str]) -> None:
    counted = run(GroupedConvolutions, Amp(level=level))["param_dtypes"]
    assert set(counted) == dtypes
    assert sum(counted.values()) == sum(each.numel() for each in GroupedConvolutions().parameters())
    if level == "o2":
        assert counted["float32"] == 2 * 32, "the norm's weight and bias"


@pytest.mark.parametrize(
    "amp",
    [
        Amp(level="o1", deny=("conv2d",)),
        Amp(level="o1", deny=("linear",)),
        Amp(level="o2", deny=("linear", "relu")),
        Amp(level="o1", allow=("dropout",), deny=("depthwise_conv2d",), keep_fp32=("7",)),
        Amp(level="o1", keep_fp32=("10",)),
        Amp(level="o2", keep_fp32=("7", "10")),
        Amp(level="o3", keep_fp32=("0",)),
    ],
    ids=str,
)
def test_what_a_list_or_pattern_keeps_in_float32_lowers_the_share_and_is_no_contradiction(amp: Amp) -> None:
    found = run(Cnn, amp)
    assert found["verdict"] == "proved", found["why"]
    assert 0 < found["half_flop_share"] < 1
    assert "kept in float32 as requested: " in found["why"]


FUNCTIONS = {
    "cross_entropy": lambda hidden: functional.cross_entropy(hidden, torch.zeros(len(hidden), dtype=torch.long)),
    "logsigmoid": functional.logsigmoid,
    "multi_dot": lambda hidden: torch.linalg.multi_dot([hidden, hidden.t(), hidden]),
    "nll_loss": lambda hidden: functional.nll_loss(hidden, torch.zeros(len(hidden), dtype=torch.long)),
    "norm": lambda hidden: hidden.norm(dim=1, keepdim=True),
    "softmax": lambda hidden: hidden.softmax(-1),
    "sub": lambda hidden: 1 - hidden,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_calls_of_a_listed_function_are_found_whatever_torch_calls_its_operation(function: str) -> None:
    class Model(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            return self.second(hidden + FUNCTIONS[function](hidden))

    training = Training(Model, Amp(level="o1", deny=(function,)))
    found = training.run(1, watched={1})
    assert found["verdict"] == "proved", found["why"]
    (entry,) = [each for each in training.observer.reports[0]["listed"] if each["function"] == function]
    assert set(entry["dtypes"]) == {"float32"}


@pytest.mark.parametrize("function", ["interpolate", "normalize", "local_response_norm"])
def test_a_listed_function_that_is_only_python_is_unknown(function: str) -> None:
    found = run(Dense, Amp(level="o1", deny=(function,)))
    assert found["verdict"] == "unknown"
    assert f"{function} is on amp.deny, but its calls can't be distinguished" in found["why"]


class Unused(Dense):
    """A layer that only evaluation calls, and activations computed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(10, 10)
        self.softmax = nn.Softmax(-1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.second(functional.relu(self.first(inputs), inplace=True))
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
    found = training.run(2, watched={1, 2})
    assert (found["verdict"], entry in found["why"]) == ("unknown", True), found["why"]
    training.net.eval()
    with training.observer.step(2, evaluation=True), torch.no_grad(), training.precision.forward():
        training.model(training.precision.input(Unused.images()))
    found = observed(training.observer.reports, {1, 2})
    if "matmul" in entry:
        assert (found["verdict"], entry in found["why"]) == ("unknown", True), found["why"]
    else:
        assert found["verdict"] == "proved", found["why"]
        assert found["why"].count("steps 1, 2 on 1 rank") == 1


@pytest.mark.parametrize("pattern", ["second", "s*", "first"])
def test_a_kept_module_that_ran_is_a_match(pattern: str) -> None:
    found = run(Dense, Amp(level="o1", keep_fp32=(pattern,)))
    assert found["verdict"] == "proved", found["why"]


def test_an_activation_in_place_is_a_match() -> None:
    found = run(Unused, Amp(level="o1", deny=("relu",)))
    assert found["verdict"] == "proved", found["why"]


def test_everything_on_the_deny_list_leaves_nothing_to_show_the_level_by() -> None:
    found = run(Dense, Amp(level="o1", deny=("linear",)))
    assert (found["verdict"], found["half_flop_share"]) == ("unknown", 0.0)
    assert "all of it is denied or kept in float32" in found["why"]


def test_every_product_of_a_step_is_counted_exactly() -> None:
    training = Training(Dense, O1)
    training.run(1, watched={1})
    counted = {
        (each["operation"], each["role"]): (each["calls"], each["flops"])
        for each in training.observer.reports[0]["calls"]
    }
    first, second = 2 * 4 * 32 * 64, 2 * 4 * 64 * 10
    assert counted == {
        ("addmm", "forward"): (2, first + second),
        ("mm", "input_gradient"): (1, second),  # the inputs need no gradient
        ("mm", "weight_gradient"): (2, first + second),
    }


def test_gradients_are_told_by_the_function_whose_they_are() -> None:
    training = Training(Transformer, O1)
    training.run(1, watched={1})
    for backward in (False, True):
        functions = {
            tuple(each["functions"]) for each in training.observer.reports[0]["calls"] if each["backward"] is backward
        }
        assert functions == {("linear",), ("scaled_dot_product_attention",)}


def test_a_product_without_gradients_does_not_take_those_of_the_one_before_it() -> None:
    class Model(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            with torch.no_grad():
                hidden.t() @ hidden
            return self.second(hidden)

    training = Training(Model, O1)
    training.run(1, watched={1})
    calls = training.observer.reports[0]["calls"]
    assert {tuple(each["functions"]) for each in calls if not each["backward"]} == {("linear",), ("matmul",)}
    assert {tuple(each["functions"]) for each in calls if each["backward"]} == {("linear",)}


def test_keeping_a_container_keeps_all_that_is_in_it() -> None:
    found = run(Transformer, Amp(level="o2", dtype="bfloat16", keep_fp32=("block",)))
    assert found["verdict"] == "proved", found["why"]
    assert found["param_dtypes"] == {
        "float32": sum(each.numel() for each in Transformer().block.parameters()),
        "bfloat16": 330,
    }


@pytest.mark.skipif(
    bool(dispatch_observer.missing(compiles=True)), reason="this torch's compiled code can't be watched"
)
def test_kept_modules_are_known_by_their_names_from_before_parts_were_compiled() -> None:
    def compile_block(training: Training) -> None:
        training.net.block = torch.compile(training.net.block, backend="eager")

    amp = Amp(level="o2", dtype="bfloat16", keep_fp32=("block.linear1",))
    training = Training(Transformer, amp, prepare=compile_block)
    training.run(1, watched={1})
    report = training.observer.reports[0]
    kept = [each["elements"] for each in report["parameters"] if each["group"] == "kept"]
    assert kept == [32 * 64 + 64]
    assert None in {each["kept"] for each in report["calls"]}, "of code made of several modules it can't be told"


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
    training = Training(Tied, Amp(level="o2", dtype="bfloat16", keep_fp32=(keep,)))
    training.run(1, watched={1})
    kept = [each for each in training.observer.reports[0]["parameters"] if each["group"] == "kept"]
    assert kept == [{"group": "kept", "dtype": "float32", "elements": 32 * 64 + 64}]


class Checkpointed(Transformer):
    reentrant = False

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.block, sequences.requires_grad_(), use_reentrant=self.reentrant)
        return self.head(hidden.mean(1))


class ReentrantlyCheckpointed(Checkpointed):
    reentrant = True


@pytest.mark.parametrize("amp", [Amp(level="o0"), O1, Amp(level="o2", keep_fp32=("head",))], ids=str)
@pytest.mark.parametrize("make", [Checkpointed, ReentrantlyCheckpointed])
def test_recomputed_activations_are_proved(make: Callable[[], nn.Module], amp: Amp) -> None:
    found = run(make, amp)
    assert found["verdict"] == "proved", found["why"]


class Block(nn.Module):
    """Ends in a product, within which recomputation stops early."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.up(inputs)))


class EndingInAProduct(nn.Module):
    kept: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + checkpoint(block, inputs, use_reentrant=False, context_fn=self.contexts)
        return inputs[:, :10]

    def contexts(self) -> Any:
        return noop_context_fn() if self.kept is None else create_selective_checkpoint_contexts([self.kept])

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(BATCH, 32)


class KeepingProducts(EndingInAProduct):
    kept = torch.ops.aten.mm.default


class KeepingPlainProducts(KeepingProducts):
    """`torch.mm`, which autocast dispatches once more."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.forward = partial(self.product, block)

    @staticmethod
    def product(block: Block, inputs: torch.Tensor) -> torch.Tensor:
        return torch.mm(functional.silu(torch.mm(inputs, block.up.weight.t())), block.down.weight.t())


class KeepingNothing(EndingInAProduct):
    kept = torch.ops.aten.silu.default


@pytest.mark.parametrize("amp", [Amp(level="o0"), O1], ids=name)
@pytest.mark.parametrize(
    ("make", "products"),
    [(EndingInAProduct, 4), (KeepingProducts, 0), (KeepingPlainProducts, 0), (KeepingNothing, 4)],
    ids=lambda each: str(each),
)
def test_of_checkpointed_blocks_what_is_computed_again_counts_and_what_was_kept_does_not(
    make: Callable[[], nn.Module], products: int, amp: Amp
) -> None:
    training = Training(make, amp)
    found = training.run(1, watched={1})
    assert found["verdict"] == "proved", found["why"]
    calls = training.observer.reports[0]["calls"]
    of_one_product = 2 * BATCH * 32 * 64
    assert sum(each["flops"] for each in calls if each["backward"]) == (7 + products) * of_one_product


class Activations(Dense):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(functional.mish(functional.silu(self.first(inputs))))


def test_gradients_that_torch_could_also_compose_of_others_are_computed_as_unobserved() -> None:
    ends = []
    for watched in ((), (1, 2)):
        training = Training(Activations, O1)
        training.run(2, watched)
        ends.append([each.detach().clone() for each in training.net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


class Lstm(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 32, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(self.recurrent(inputs.unflatten(1, (4, 8)))[0][:, -1])


@pytest.mark.parametrize("amp", [Amp(level="o0"), O1, Amp(level="o3", dtype="bfloat16")], ids=name)
def test_a_recurrent_layer_is_proved(amp: Amp) -> None:
    found = run(Lstm, amp)
    assert found["verdict"] == "proved", found["why"]


class HalfOptimizer(torch.optim.SGD):
    """Orthogonalises gradients in bfloat16 products, as Muon does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if each.grad is not None and each.ndim == 2:
                gradient = each.grad.bfloat16()
                each.grad.add_((gradient @ gradient.t() @ gradient).to(each.dtype), alpha=1e-3)
        return super().step(closure)


@LEVELS
def test_the_optimizers_own_products_do_not_count(amp: Amp) -> None:
    found = run(Dense, amp, make_optimizer=lambda weights: HalfOptimizer(weights, lr=0.01))
    assert found["verdict"] == "proved", found["why"]
    assert found["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)


def test_a_closure_that_the_optimizer_calls_does_count() -> None:
    training = Training(Dense, Amp(level="o0"), make_optimizer=lambda weights: torch.optim.LBFGS(weights, max_iter=2))
    images, labels = Dense.images(), torch.randint(0, 10, (4,))

    def closure() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(images), labels)
        loss.backward()
        return loss

    with training.observer.step(1):
        training.optimizer.step(closure)
    found = observed(training.observer.reports)
    assert found["verdict"] == "proved", found["why"]
    assert found["half_flop_share"] == 0.0


def test_second_derivatives_count_as_backward() -> None:
    training = Training(Dense, Amp(level="o1", keep_fp32=("first",)))
    images = Dense.images().requires_grad_()
    with training.observer.step(1):
        with training.precision.forward():
            output = training.model(images).float().square().sum()
        (gradient,) = torch.autograd.grad(output, images, create_graph=True)
        gradient.square().sum().backward()
    calls = training.observer.reports[0]["calls"]
    assert {each["kept"] for each in calls} == {True, False}, "each is traced back to its forward call"
    assert all(each["dtype"] == ("float32" if each["kept"] else "bfloat16") for each in calls)


class RotatedGradient(torch.autograd.Function):
    """A product in backward alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ torch.eye(gradient.shape[-1], dtype=gradient.dtype)


@pytest.mark.parametrize(("keep", "kept"), [((), False), (("first",), None)])
def test_of_a_gradient_without_a_forward_product_it_is_not_known_whose_it_is(keep: tuple[str, ...], kept: Any) -> None:
    class Model(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(RotatedGradient.apply(self.first(inputs)))

    training = Training(Model, Amp(level="o1", keep_fp32=keep))
    training.run(1, watched={1})
    (rotation,) = [each for each in training.observer.reports[0]["calls"] if len(each["functions"]) > 1]
    assert rotation["backward"]
    assert rotation["kept"] is kept


@pytest.mark.parametrize("amp", [*EVERY_LEVEL, Amp(level="o2", keep_fp32=("7",), deny=("conv2d",))], ids=name)
def test_watching_leaves_weights_optimizer_and_random_numbers_bit_identical(amp: Amp) -> None:
    trainings = [
        Training(Cnn, amp, make_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9))
        for _ in range(2)
    ]
    ends = []
    for training, watched in zip(trainings, ((), (1, 2, 3)), strict=True):
        torch.manual_seed(1)
        training.run(3, watched)
        optimizer = training.optimizer.state_dict()["state"]
        ends.append(
            (
                [each.detach().clone() for each in training.net.state_dict().values()],
                [each["momentum_buffer"] for each in optimizer.values() if each.get("momentum_buffer") is not None],
                [torch.get_rng_state()],
            )
        )
    for unwatched, seen in zip(*ends, strict=True):
        assert len(unwatched) == len(seen) > 0
        assert all(torch.equal(one, other) for one, other in zip(unwatched, seen, strict=True))


def test_an_overflow_that_skips_the_step_leaves_masters_unseen_until_one_is_taken() -> None:
    amp = Amp(level="o2", dtype="float16")
    training = Training(Dense, amp, scale=LossScale(mode="dynamic", init=2.0**40, backoff=2.0**-32))
    skipped = training.run(1, watched={1})
    assert (skipped["verdict"], "masters weren't seen" in skipped["why"]) == ("unknown", True)
    assert training.run(2, watched={2})["verdict"] == "proved"


def test_weights_that_the_optimizer_has_and_does_not_step_do_not_count() -> None:
    training = Training(Dense, Amp(level="o2"))
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]})
    assert training.run(1, watched={1})["verdict"] == "proved"


def test_a_step_that_raises_is_not_reported_and_leaves_nothing_behind() -> None:
    training = Training(Dense, O1)
    artifact = compiled._artifact()
    before = vars(artifact)["__call__"] if artifact else None
    with pytest.raises(ZeroDivisionError), training.observer.step(1):
        training.step()
        raise ZeroDivisionError
    assert training.observer.reports == []
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
    assert before is None or vars(artifact)["__call__"] is before
    assert training.run(2, watched={2})["verdict"] == "proved"
    assert len(training.observer.reports) == 1


def test_reports_are_json() -> None:
    training = Training(Transformer, Amp(level="o1", deny=("layer_norm",), keep_fp32=("head",)))
    training.run()
    assert json.loads(json.dumps(training.observer.reports)) == training.observer.reports


def test_reports_of_an_earlier_attempt_can_be_put_back() -> None:
    first, second = Training(Dense, O1), Training(Dense, O1)
    first.run(1, watched={1})
    second.run(3, watched={3})
    assert observed(second.observer.reports, {1, 3})["verdict"] == "unknown"
    second.observer.reports[:0] = first.observer.reports
    assert observed(second.observer.reports, {1, 3})["verdict"] == "proved"


def test_nothing_observed_is_unknown() -> None:
    training = Training(Dense, O1)
    found = training.run(2, watched=())
    assert (found["verdict"], found["why"]) == ("unknown", "no step was observed")
    assert found["half_flop_share"] is None


def test_a_profiler_of_the_users_own_leaves_no_second_observer() -> None:
    training = Training(Dense, O1)
    with torch.autograd.profiler.profile() as users:
        found = training.run(1, watched={1})
    assert any(each.key == "aten::addmm" for each in users.key_averages()), "and theirs goes on"
    assert found["verdict"] == "unknown"
    assert "no second observer: another profiler is at work" in found["why"]


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
    unwatched = Training(Dense, Amp(level="o1", deny=("relu",)))
    unwatched.run(3, watched=())
    training = Training(Dense, Amp(level="o1", deny=("relu",)))
    monkeypatch.delattr(missing)
    found = training.run(3, watched={1, 3})
    assert (found["verdict"], missing.rpartition(".")[2] in found["why"]) == ("unknown", True), found["why"]
    for one, other in zip(training.net.parameters(), unwatched.net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_the_model_itself_raises_is_not_taken_for_a_failure_to_observe() -> None:
    class Broken(Dense):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(inputs)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(Broken, O1)
    assert not torch.autograd._profiler_enabled()


def test_gpu_asked_for_and_cpu_run_is_contradicted() -> None:
    training = Training(Dense, O1)
    training.run(1, watched={1})
    training.observer.reports[0]["rule"]["device"] = "cuda"
    found = observed(training.observer.reports)
    assert found["verdict"] == "contradicted"
    assert "device=cuda, but matrix products ran on cpu" in found["why"]


@pytest.mark.parametrize(("total", "first"), [(1, 1), (2, 1), (168, 1), (168, 101), (10_000, 10_000)])
def test_the_steps_chosen_are_the_first_the_last_and_one_between(total: int, first: int) -> None:
    for seed in range(20):
        steps = choose_steps(total, seed, first)
        assert {first, total} <= steps
        assert len(steps) <= 3
        assert all(first <= each <= total for each in steps)


def test_the_step_between_is_a_function_of_the_seed_and_of_the_number_of_steps() -> None:
    assert choose_steps(1000, 7) == choose_steps(1000, 7)
    assert len({frozenset(choose_steps(1000, seed)) for seed in range(50)}) > 40
    assert len({frozenset(choose_steps(total, 7) - {total}) for total in range(1000, 1050)}) > 40


def test_no_steps_left_are_none_to_choose_from() -> None:
    assert choose_steps(10, 0, first=11) == set()


@pytest.mark.parametrize("amp", EVERY_HALF, ids=name)
def test_reports_hold_what_was_asked_for(amp: Amp) -> None:
    training = Training(Dense, amp)
    training.run(1, watched={1})
    rule = training.observer.reports[0]["rule"]
    assert (rule["level"], rule["dtype"], rule["masters"]) == (amp.level, amp.dtype, amp.level == "o2")
