"""What the observer reports of honest runs, and that observing changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from amp_launcher.loop.proof import choose_steps
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.torch.observe import compiled
from tests.amp_launcher.torch.loops import same
from tests.amp_launcher.torch.observed_runs import (
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
    with training.observer.step(2, evaluation=True), torch.no_grad(), training.precision:
        training.model(Unused.images())
    result = observed(training.observer.reports, {1, 2})
    if "matmul" in entry:
        assert (result["verdict"], entry in result["why"]) == ("unknown", True), result["why"]
    else:
        assert proved(result)["why"].count("steps 1, 2 on 1 rank") == 1


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
    assert same(*(trained_state(make, amp, steps) for steps in ((), (1, 2, 3))))


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


def test_a_profiler_of_the_users_own_leaves_one_observer() -> None:
    training = Training(Dense, O1)
    with torch.autograd.profiler.profile() as users:
        result = training.run(1, watched={1})
    assert any(average.key == "aten::addmm" for average in users.key_averages()), "and theirs goes on"
    assert proved(result)["why"].endswith("by one observer only: the script's own profiler was at work")


@pytest.mark.parametrize(
    "missing",
    [
        "torch._C._current_graph_task_id",
        "torch._C._current_autograd_node",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
        "torch.autograd._get_sequence_nr",
        "torch.autograd._profiler_enabled",
        "amp_launcher.torch.observe.profiler_audit.read",
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
    assert same(training.net.parameters(), unobserved.net.parameters())


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


@pytest.mark.parametrize(("kind", "stored"), [("8bit", "uint8"), ("Fp8", "float8_e4m3fn")])
def test_the_state_of_an_optimizer_is_recorded_as_it_is_stored(kind, stored):
    subclass = pytest.importorskip(f"torchao.optim.subclass_{kind.lower()}")

    class Quantized(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for weight in self.param_groups[0]["params"]:
                zeros = getattr(subclass, f"OptimState{kind}").zeros
                self.state[weight]["exp_avg"] = zeros((16, 256))

    observed = run(Dense, Amp(level="o0"), make_optimizer=lambda weights: Quantized(weights, lr=0.01))
    assert (observed["verdict"], observed["state_dtype"]) == ("proved", stored)
