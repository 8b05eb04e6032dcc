"""The levels on a training loop that never asks which one it has."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from amp_launcher.precision.levels import LossScale
from tests.amp_launcher.torch.loops import HALVES, backward, of, same, step, stepped

MODES = [("o0", "auto"), *itertools.product(("o1", "o2", "o3"), HALVES)]
SCALED = [("o1", "float16"), ("o2", "float16")]
EVERY_MODE = pytest.mark.parametrize(("level", "dtype"), MODES)

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


def sgd(parameters, lr=0.05, **options):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, **options)


class Training:
    """A network, its optimizer and the loop's body."""

    def __init__(self, precision, make=sgd):
        self.precision = precision
        self.model = precision.prepare(network())
        self.optimizer = precision.prepare(make(self.model.parameters()))

    def backward(self, inputs=INPUTS, labels=LABELS, factor=1.0):
        backward(self.precision, self.model, inputs, lambda outputs: factor * cross_entropy(outputs, labels))

    def step(self, overflow=False, clip=None):
        """The loss, and what became of the step."""
        losses = []

        def loss_of(outputs):
            losses.append(cross_entropy(outputs, LABELS))
            return losses[0] * torch.inf if overflow else losses[0]

        outcome = step(self.precision, self.model, self.optimizer, INPUTS, loss_of, clip)
        return losses[0].item(), outcome

    def weights(self):
        return stepped(self.optimizer)


# What a level is


@EVERY_MODE
def test_every_level_trains_in_its_own_dtypes(level, dtype):
    training = Training(of(level, dtype))
    losses = [training.step()[0] for _ in range(15)]
    float32, half = torch.float32, torch.float32 if level == "o0" else getattr(torch, dtype)
    assert training.precision.dtype == half
    assert losses[-1] < 0.2 * losses[0]
    model = {"o0": {float32}, "o1": {float32}, "o2": {half, float32}, "o3": {half}}[level]
    assert {parameter.dtype for parameter in training.model.parameters()} == model
    assert {weight.dtype for weight in training.weights()} == ({half} if level == "o3" else {float32})


def test_o2_keeps_norms_in_float32_and_nothing_else():
    model = of("o2").prepare(network())
    kept = {name for name, parameter in model.named_parameters() if parameter.dtype == torch.float32}
    assert kept == {"1.weight", "1.bias", "5.weight", "5.bias"}
    assert model[1].running_mean.dtype == torch.float32


@pytest.mark.parametrize("masters", [None, False])
def test_o2_leaves_buffers_as_they_are(masters):
    """A table of RoPE's angles in bfloat16 is off by more than a radian at position 4095."""
    model = network()
    angles = torch.outer(torch.arange(4096.0), 10000.0 ** -(torch.arange(0, 64, 2) / 64))
    model.register_buffer("angles", angles.clone())
    model.register_buffer("coarse", torch.zeros(2, dtype=torch.float16))
    of("o2", master_weights=masters).prepare(model)
    assert (model.angles.dtype, model.coarse.dtype) == (torch.float32, torch.float16)
    assert torch.equal(model.angles, angles)


def test_a_parameter_shared_with_a_kept_module_is_kept():
    model = nn.ModuleDict({"inner": nn.Linear(4, 4), "head": nn.Linear(4, 4)})
    model["head"].weight = model["inner"].weight
    of("o2", keep_fp32=("head",)).prepare(model)
    assert model["inner"].weight is model["head"].weight
    assert (model["inner"].weight.dtype, model["inner"].bias.dtype) == (torch.float32, torch.bfloat16)


def test_casting_leaves_integers_float64_and_parameter_objects_alone():
    model = nn.Linear(4, 4)
    model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    model.register_buffer("exact", torch.zeros((), dtype=torch.float64))
    model.register_buffer("mean", torch.zeros(4), persistent=False)
    parameters = list(model.parameters())
    of("o3").prepare(model)
    assert (model.count.dtype, model.exact.dtype, model.mean.dtype) == (torch.int64, torch.float64, torch.bfloat16)
    assert [*map(id, parameters)] == [*map(id, model.parameters())]
    assert set(model.state_dict()) == {"weight", "bias", "count", "exact"}


# The same as a loop written by hand


@pytest.mark.parametrize(("level", "dtype"), [("o0", "float32"), ("o1", "float16"), ("o1", "bfloat16")])
def test_o0_is_a_plain_loop_and_o1_autocast_with_gradscaler_bit_for_bit(level, dtype):
    training = Training(of(level, dtype))
    model = network()
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    for _ in range(5):
        training.step(clip=1.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, dtype), enabled=level == "o1"):
            loss = cross_entropy(model(INPUTS).float(), LABELS)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert same(training.model.parameters(), model.parameters())


def test_o2_steps_float32_masters_and_the_model_is_their_rounding():
    training = Training(of("o2"))
    assert same(training.weights(), network().parameters())
    training.step()
    model = list(training.model.parameters())
    assert same([weight.to(own.dtype) for weight, own in zip(training.weights(), model, strict=True)], model)
    assert not same(training.weights(), [own.float() for own in model])


def test_weights_given_between_the_cast_and_the_optimizer_are_the_masters():
    precision = of("o2")
    net = precision.prepare(network())
    with torch.no_grad():
        net[4].weight.fill_(0.3)
    masters = stepped(precision.prepare(sgd(net.parameters())))
    assert torch.equal(masters[4], net[4].weight.float())
    assert torch.equal(masters[0], network()[0].weight)


def test_o2_without_masters_steps_the_half_precision_parameters():
    training = Training(of("o2", master_weights=False))
    loss = training.step()[0]
    assert {weight.dtype for weight in training.weights()} == {torch.bfloat16, torch.float32}
    assert training.precision.resolved.mechanism == "half_model_no_masters"
    assert training.step()[0] < loss


# Optimizers, accumulation, clipping


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_with_state_of_any_kind_keep_it_in_float32_at_o2(make):
    training = Training(of("o2"), make)
    losses = [training.step()[0] for _ in range(11)]
    assert losses[-1] < losses[0]
    values = [value for entry in training.optimizer.state_dict()["state"].values() for value in entry.values()]
    assert {value.dtype for value in values if torch.is_tensor(value)} == {torch.float32}


def test_a_learning_rate_schedule_made_before_or_after_moves_the_masters():
    precision = of("o2")
    model = precision.prepare(network())
    optimizer = sgd(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert precision.prepare(optimizer) is optimizer
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    backward(precision, model, INPUTS)
    precision.step(optimizer)
    before.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


@EVERY_MODE
def test_micro_batches_add_up_to_the_whole_batch(level, dtype):
    scale = LossScale(mode="static", init=256.0) if (level, dtype) in SCALED else None
    whole, parts = (Training(of(level, dtype, scale)) for _ in range(2))
    for training in (whole, parts):
        training.model.eval()  # batch norm sees the same statistics
    whole.step()
    for inputs, labels in zip(INPUTS.chunk(4), LABELS.chunk(4), strict=True):
        parts.backward(inputs, labels, 1 / 4)
    parts.precision.step(parts.optimizer)
    tolerance = 1e-6 if level == "o0" else 2e-3
    for one, other in zip(whole.weights(), parts.weights(), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=tolerance)


@EVERY_MODE
def test_clipping_sees_unscaled_gradients(level, dtype):
    scale = LossScale(mode="static", init=1024.0) if (level, dtype) in SCALED else None
    plain, clipped = Training(of("o0")), Training(of(level, dtype, scale))
    norm = plain.step(clip=1e9)[1].grad_norm.item()
    assert clipped.step(clip=0.5)[1].grad_norm.item() == pytest.approx(norm, rel=0.1)
    assert norm > 1.0
    start = [weight.clone() for weight in clipped.weights()]
    clipped.optimizer.param_groups[0]["momentum"] = 0.0
    clipped.step(clip=0.01)
    moved = torch.cat([(old - new).float().flatten() for old, new in zip(start, clipped.weights(), strict=True)])
    if level != "o3":  # whose weights can't take a step this small
        assert moved.norm().item() == pytest.approx(0.05 * 0.01, rel=0.02)


@pytest.mark.parametrize(("level", "dtype"), SCALED)
def test_a_step_that_overflows_is_skipped_counted_and_halves_the_scale(level, dtype):
    training = Training(of(level, dtype))
    assert training.step()[1].applied
    before = [weight.clone() for weight in training.weights()]
    _, outcome = training.step(overflow=True, clip=1.0)
    assert (outcome.applied, outcome.loss_scale.item()) == (False, 2.0**16)
    assert same(before, training.weights())
    assert (training.precision.scale, training.precision.skipped_total) == (2.0**15, 1)
    assert training.step()[1].applied
    assert not same(before, training.weights())


class Reads(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@EVERY_MODE
def test_a_good_step_never_waits_for_the_device(level, dtype):
    scale = LossScale(mode="dynamic", backoff_every=2, max=2.0**20) if (level, dtype) in SCALED else None
    training = Training(of(level, dtype, scale), lambda parameters: sgd(parameters, fused=True))
    training.step()
    training.backward()
    with Reads() as counted:
        training.precision.step(training.optimizer, clip=1.0)
    assert counted.count == 0


# Saved and restored


@EVERY_MODE
def test_a_run_that_goes_on_from_its_states_is_bit_identical(level, dtype):
    scale = LossScale(mode="dynamic", growth_every=2, backoff_every=2) if (level, dtype) in SCALED else None
    overflows = [scale is not None and step in (2, 4, 5) for step in range(8)]

    def start():
        return Training(of(level, dtype, scale), lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-4))

    whole = start()
    expected = [whole.step(overflow)[0] for overflow in overflows]
    for at, order in ((3, ("model", "optimizer", "precision")), (6, ("precision", "model", "optimizer"))):
        first, second = start(), start()
        losses = [first.step(overflow)[0] for overflow in overflows[:at]]
        saved = {name: copy.deepcopy(getattr(first, name).state_dict()) for name in order}
        for name in order:
            getattr(second, name).load_state_dict(saved[name])
        losses += [second.step(overflow)[0] for overflow in overflows[at:]]
        assert losses == expected
        assert same(second.weights(), whole.weights())
        assert second.precision.state_dict()["scaler"] == whole.precision.state_dict()["scaler"]
