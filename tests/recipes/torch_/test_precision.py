"""The levels on a training loop that never asks which one it has."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.precision import Precision
from recipes.typed import SettingsError

CPU = torch.device("cpu")
HALVES = ("float16", "bfloat16")
MODES = [("o0", "auto"), *itertools.product(("o1", "o2", "o3"), HALVES)]
SCALED = [("o1", "float16"), ("o2", "float16")]

INPUTS = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 10, (32,), generator=torch.Generator().manual_seed(2))


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 10),
    )


def of(level, dtype="auto", scale=None, **amp):
    return Precision.of(Amp(level=level, dtype=dtype, **amp), scale or LossScale(), CPU)


class Training:
    """A network, its optimizer and the loop's body."""

    def __init__(self, precision, make=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)):
        self.precision = precision
        self.model = precision.cast(network())
        self.optimizer = precision.optimizer(self.model, make(self.model.parameters()))

    def loss(self, inputs=INPUTS, labels=LABELS):
        with self.precision.forward():
            return cross_entropy(self.precision.output(self.model(self.precision.input(inputs))), labels)

    def step(self, overflow=False, clip=None):
        self.optimizer.zero_grad()
        loss = self.loss()
        self.precision.backward(loss * torch.inf if overflow else loss)
        outcome = self.precision.step(self.optimizer, clip=clip)
        self.precision.update()
        return loss.item(), outcome

    def weights(self):
        """What the optimizer steps: the masters where there are any."""
        return [each.detach() for group in self.optimizer.param_groups for each in group["params"]]


def same(one, two):
    return all(torch.equal(left, right) for left, right in zip(one, two, strict=True))


# What a level is


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_every_level_trains_in_its_own_dtypes(level, dtype):
    training = Training(of(level, dtype))
    losses = [training.step()[0] for _ in range(15)]
    half = torch.float32 if level == "o0" else getattr(torch, dtype)
    assert training.precision.dtype == half
    assert losses[-1] < 0.2 * losses[0]
    model = {
        "o0": {torch.float32},
        "o1": {torch.float32},
        "o2": {half, torch.float32},
        "o3": {half},
    }[level]
    assert {each.dtype for each in training.model.parameters()} == model
    assert {each.dtype for each in training.weights()} == ({half} if level == "o3" else {torch.float32})


def test_o2_keeps_norms_in_float32_and_nothing_else():
    model = of("o2").cast(network())
    kept = {name for name, each in model.named_parameters() if each.dtype == torch.float32}
    assert kept == {"1.weight", "1.bias", "5.weight", "5.bias"}
    assert model[1].running_mean.dtype == torch.float32


@pytest.mark.parametrize("masters", [None, False])
def test_o2_leaves_buffers_as_they_are(masters):
    """A table of RoPE's angles in bfloat16 is off by more than a radian at position 4095."""
    model = network()
    frequencies = 10000.0 ** -(torch.arange(0, 64, 2) / 64)
    model.register_buffer("angles", torch.outer(torch.arange(4096.0), frequencies))
    model.register_buffer("coarse", torch.zeros(2, dtype=torch.float16))
    exact = model.angles.clone()
    of("o2", master_weights=masters).cast(model)
    assert model.angles.dtype == torch.float32
    assert torch.equal(model.angles, exact)
    assert model.coarse.dtype == torch.float16


# torch's own LSTM has no float16 under autocast on a CPU.
@pytest.mark.parametrize(("level", "dtype"), [("o2", "bfloat16"), ("o3", "bfloat16"), ("o3", "float16")])
def test_recurrent_networks_are_cast_too(level, dtype):
    precision = of(level, dtype)
    model = precision.cast(nn.LSTM(4, 8))
    with precision.forward():
        result, _ = model(precision.input(torch.randn(5, 2, 4)))
    assert result.dtype == getattr(torch, dtype)


def test_a_parameter_shared_with_a_kept_module_is_kept():
    model = nn.ModuleDict({"inner": nn.Linear(4, 4), "head": nn.Linear(4, 4)})
    model["head"].weight = model["inner"].weight
    of("o2", keep_fp32=("head",)).cast(model)
    assert model["inner"].weight.dtype == torch.float32
    assert model["inner"].weight is model["head"].weight
    assert model["inner"].bias.dtype == torch.bfloat16


def test_casting_leaves_integers_float64_and_parameter_objects_alone():
    model = nn.Linear(4, 4)
    model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    model.register_buffer("exact", torch.zeros((), dtype=torch.float64))
    model.register_buffer("mean", torch.zeros(4), persistent=False)
    parameters = list(model.parameters())
    of("o3").cast(model)
    assert (model.count.dtype, model.exact.dtype, model.mean.dtype) == (torch.int64, torch.float64, torch.bfloat16)
    assert all(one is two for one, two in zip(parameters, model.parameters(), strict=True))
    assert set(model.state_dict()) == {"weight", "bias", "count", "exact"}


# The same as a loop written by hand


def test_o0_is_a_plain_loop_bit_for_bit():
    training = Training(of("o0"))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        training.step(clip=1.0)
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert same(training.model.parameters(), model.parameters())


@pytest.mark.parametrize("dtype", HALVES)
def test_o1_is_autocast_with_gradscaler_bit_for_bit(dtype):
    training = Training(of("o1", dtype))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    for _ in range(5):
        training.step(clip=1.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            loss = cross_entropy(model(INPUTS).float(), LABELS)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert same(training.model.parameters(), model.parameters())


def test_o2_steps_float32_masters_and_the_model_is_their_rounding():
    training = Training(of("o2"))
    start = [each.detach().clone() for each in training.model.parameters()]
    assert same(training.weights(), network().parameters())
    assert not same(training.weights(), [each.float() for each in start])
    training.step()
    assert same(
        [each.to(old.dtype) for each, old in zip(training.weights(), start, strict=True)], training.model.parameters()
    )
    assert not same(training.weights(), [each.float() for each in training.model.parameters()])


def test_weights_given_between_the_cast_and_the_optimizer_are_the_masters():
    precision = of("o2")
    net = precision.cast(network())
    with torch.no_grad():
        net[4].weight.fill_(0.3)
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.05))
    masters = optimizer.param_groups[0]["params"]
    assert torch.equal(masters[4], net[4].weight.float())
    assert torch.equal(masters[0], network()[0].weight)


def test_o2_without_masters_steps_the_half_precision_parameters():
    training = Training(of("o2", master_weights=False))
    loss = training.step()[0]
    assert {each.dtype for each in training.weights()} == {torch.bfloat16, torch.float32}
    assert training.precision.resolved.mechanism == "half_model_no_masters"
    assert training.step()[0] < loss


@pytest.mark.parametrize("dtype", HALVES)
def test_o3_loses_small_updates_and_o2_does_not(dtype):
    """AMP.md's experiment: 40 steps of SGD at lr 1e-4, too small a step for a half-precision weight to take."""

    def drop(level):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
        inputs, labels = torch.randn(64, 16), torch.randint(0, 10, (64,))
        precision = of(level, "auto" if level == "o0" else dtype)
        optimizer = precision.optimizer(precision.cast(model), torch.optim.SGD(model.parameters(), lr=1e-4))

        def exact_loss():
            judge = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
            with torch.no_grad():
                for parameter, weight in zip(judge.parameters(), optimizer.param_groups[0]["params"], strict=True):
                    parameter.copy_(weight)
                return cross_entropy(judge(inputs), labels).item()

        before = exact_loss()
        for _ in range(40):
            optimizer.zero_grad()
            with precision.forward():
                loss = cross_entropy(precision.output(model(precision.input(inputs))), labels)
            precision.backward(loss)
            precision.step(optimizer)
            precision.update()
        return before - exact_loss()

    float32 = drop("o0")
    assert drop("o2") == pytest.approx(float32, rel=0.05)
    assert drop("o3") < 0.2 * float32


# Optimizers, accumulation, clipping


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_with_state_of_any_kind_keep_it_in_float32_at_o2(make):
    training = Training(of("o2"), make)
    first = training.step()[0]
    for _ in range(10):
        last = training.step()[0]
    assert last < first
    state = training.optimizer.state_dict()["state"]
    assert {value.dtype for each in state.values() for value in each.values() if torch.is_tensor(value)} == {
        torch.float32
    }


def test_a_learning_rate_schedule_made_before_or_after_moves_the_masters():
    precision = of("o2")
    model = precision.cast(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert precision.optimizer(model, optimizer) is optimizer
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    precision.backward(model(INPUTS.bfloat16()).float().sum())
    precision.step(optimizer)
    before.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_micro_batches_add_up_to_the_whole_batch(level, dtype):
    scale = LossScale(mode="static", init=256.0) if (level, dtype) in SCALED else None
    whole, parts = (Training(of(level, dtype, scale)) for _ in range(2))
    for each in (whole, parts):
        each.model.eval()  # batch norm sees the same statistics
    whole.step()
    for inputs, labels in zip(INPUTS.chunk(4), LABELS.chunk(4), strict=True):
        parts.precision.backward(parts.loss(inputs, labels) / 4)
    parts.precision.step(parts.optimizer)
    parts.precision.update()
    tolerance = 1e-6 if level == "o0" else 2e-3
    for one, two in zip(whole.weights(), parts.weights(), strict=True):
        assert torch.allclose(one.float(), two.float(), atol=tolerance)


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_clipping_sees_unscaled_gradients(level, dtype):
    scale = LossScale(mode="static", init=1024.0) if (level, dtype) in SCALED else None
    plain, clipped = Training(of("o0")), Training(of(level, dtype, scale))
    norm = plain.step(clip=1e9)[1].grad_norm.item()
    assert clipped.step(clip=0.5)[1].grad_norm.item() == pytest.approx(norm, rel=0.1)
    assert norm > 1.0
    start = [each.clone() for each in clipped.weights()]
    clipped.optimizer.param_groups[0]["momentum"] = 0.0
    clipped.step(clip=0.01)
    moved = torch.cat([(old - new).float().flatten() for old, new in zip(start, clipped.weights(), strict=True)])
    if level != "o3":  # whose weights can't take a step this small
        assert moved.norm().item() == pytest.approx(0.05 * 0.01, rel=0.02)


@pytest.mark.parametrize(("level", "dtype"), SCALED)
def test_a_step_that_overflows_is_skipped_counted_and_halves_the_scale(level, dtype):
    training = Training(of(level, dtype))
    assert training.step()[1].applied
    before = [each.clone() for each in training.weights()]
    _, outcome = training.step(overflow=True, clip=1.0)
    assert not outcome.applied
    assert outcome.loss_scale.item() == 2.0**16
    assert same(before, training.weights())
    assert (training.precision.scale, training.precision.skipped_total) == (2.0**15, 1)
    assert training.step()[1].applied
    assert not same(before, training.weights())


class Reads(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_a_good_step_never_waits_for_the_device(level, dtype):
    def fused(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True)

    scale = LossScale(mode="dynamic", backoff_every=2, max=2.0**20) if (level, dtype) in SCALED else None
    training = Training(of(level, dtype, scale), fused)
    training.step()
    training.precision.backward(training.loss())
    with Reads() as counted:
        training.precision.step(training.optimizer, clip=1.0)
        training.precision.update()
    assert counted.count == 0


# Saved and taken up again


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_a_run_taken_up_from_its_states_is_bit_identical(level, dtype):
    scale = LossScale(mode="dynamic", growth_every=2, backoff_every=2) if (level, dtype) in SCALED else None
    overflows = [False, False, True, False, True, True, False, False]
    overflows = [each and scale is not None for each in overflows]

    def start():
        return Training(of(level, dtype, scale), lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-4))

    whole = start()
    expected = [whole.step(each)[0] for each in overflows]
    for at in (3, 6):
        first, second = start(), start()
        losses = [first.step(each)[0] for each in overflows[:at]]
        parts = (("precision", first.precision), ("model", first.model), ("optimizer", first.optimizer))
        saved = {name: copy.deepcopy(part.state_dict()) for name, part in parts}
        order = ["model", "optimizer", "precision"] if at % 2 else ["precision", "model", "optimizer"]
        for name in order:
            getattr(second, name).load_state_dict(saved[name])
        losses += [second.step(each)[0] for each in overflows[at:]]
        assert losses == expected
        assert same(second.weights(), whole.weights())
        assert second.precision.state_dict()["scaler"] == whole.precision.state_dict()["scaler"]


def test_copying_a_model_does_not_copy_its_masters():
    training = Training(of("o2"))
    average = copy.deepcopy(training.model)
    before = [each.clone() for each in average.parameters()]
    training.step()
    assert same(before, average.parameters())


def test_masters_of_another_model_are_refused():
    precision = of("o2")
    model = precision.cast(nn.Linear(2, 3))
    precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="another model's"):
        precision.load_state_dict(Training(of("o2")).precision.state_dict())


# What is refused


def test_a_device_that_no_level_knows_is_refused():
    with pytest.raises(SettingsError, match="device=meta is not one of cpu, cuda"):
        Precision.of(Amp(level="o1"), LossScale(), torch.device("meta"))


@pytest.mark.parametrize(("level", "dtype"), MODES)
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda model: nn.Sequential(torch.compile(model))])
def test_a_model_that_was_wrapped_before_it_was_cast_is_refused(level, dtype, wrap):
    with pytest.raises(RuntimeError, match=r"already wrapped by (torch\.compile|DataParallel).*comes first"):
        of(level, dtype).cast(wrap(nn.Linear(2, 2)))


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_an_optimizer_before_the_cast_is_refused(level):
    model = network()
    with pytest.raises(RuntimeError, match=r"comes after precision\.cast"):
        of(level).optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_stepping_past_the_precision_is_refused(level):
    training = Training(of(level))
    training.precision.backward(training.loss())
    with pytest.raises(RuntimeError, match=r"call precision\.step\(optimizer\)"):
        training.optimizer.step()


def test_an_optimizer_that_o2_was_not_told_of_is_refused():
    training = Training(of("o2"))
    stranger = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.precision.backward(training.loss())
    with pytest.raises(RuntimeError, match=r"comes after optimizer = precision\.optimizer"):
        training.precision.step(stranger)


def test_the_same_optimizer_twice_is_refused():
    training = Training(of("o2"))
    with pytest.raises(RuntimeError, match="twice"):
        training.precision.optimizer(training.model, training.optimizer)


@pytest.mark.parametrize(("level", "dtype"), [mode for mode in MODES if mode[0] in ("o1", "o2")])
def test_a_step_under_autocast_is_refused_as_the_next_forward_would_see_old_weights(level, dtype):
    training = Training(of(level, dtype))
    with training.precision.forward():
        loss = cross_entropy(training.model(INPUTS).float(), LABELS)
        training.precision.backward(loss)
        with pytest.raises(RuntimeError, match=r"under autocast; end precision\.forward\(\) first"):
            training.precision.step(training.optimizer)


def test_a_half_precision_loss_is_refused_at_o3():
    training = Training(of("o3"))
    loss = cross_entropy(training.model(training.precision.input(INPUTS)), LABELS)
    with pytest.raises(RuntimeError, match=r"the loss is torch\.bfloat16 and should be float32"):
        training.precision.backward(loss)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: {**state, "masters": list(state["masters"].values())}, "have no names: an older version"),
        (lambda state: {**state, "scaler": without(state["scaler"], "bad_steps")}, "has no bad_steps: another version"),
        (lambda state: without(state, "scaler"), "has no scaler: another version"),
    ],
    ids=["masters", "bad-steps", "scaler"],
)
def test_a_state_that_another_version_saved_is_refused(change, says):
    precision = Precision.of(Amp(level="o2", dtype="float16"), LossScale(mode="dynamic"), torch.device("cpu"))
    model = precision.cast(nn.Linear(2, 2))
    precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SettingsError, match=says):
        precision.load_state_dict(change(precision.state_dict()))


def without(values, key):
    return {name: each for name, each in values.items() if name != key}
