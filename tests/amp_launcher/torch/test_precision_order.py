"""Calls of a precision in a wrong order, and states of other models, are refused in words."""

from __future__ import annotations

import itertools
import types

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amp_launcher.torch.precision import Precision
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import of
from tests.amp_launcher.torch.test_precision import INPUTS, LABELS, Training, network, sgd


def step_by_itself(training):
    training.backward()
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0
    training.optimizer.step()


def step_with_a_closure(training):
    training.optimizer.step(training.backward)


def step_of_zeros_by_itself(training):
    training.backward()
    training.optimizer.zero_grad(set_to_none=False)
    training.optimizer.step()


def step_under_autocast(training):
    training.backward()
    with torch.autocast("cpu"):
        training.precision.step(training.optimizer)


def within(call):
    def use(training):
        with training.precision:
            call(training)

    return use


def half_precision_loss(training):
    with training.precision:
        loss = cross_entropy(training.model(INPUTS).bfloat16(), LABELS)
    training.precision.backward(loss)


def loss_without_the_block(training):
    training.precision.backward(training.model[1].weight.float().sum())


def backward_twice_around_a_step(training):
    training.step()
    training.precision.step(training.optimizer)


def one_norm_over_a_shared_parameter(training):
    other = training.precision.prepare(sgd(training.model.parameters()))
    training.backward()
    training.precision.step(training.optimizer, other, clip=1.0)


def anothers_optimizer(training):
    net = network()
    training.precision.prepare(net, sgd(network().parameters()))


def optimizer_of_another_model_too(training):
    other = nn.Linear(2, 2)
    net = network()
    training.precision.prepare(net, sgd([*net.parameters(), *other.parameters()]))


def prepared_by_another(training):
    Precision("o1", device="cpu").prepare(training.model)


def optimizer_of_another(training):
    net = training.precision.prepare(network())
    optimizer = training.precision.prepare(sgd(net.parameters()))
    other = Precision("o1", device="cpu")
    other.prepare(network())
    other.prepare(optimizer)


def forward_without_the_block(training):
    with torch.no_grad():
        training.model(INPUTS)


def averages_in_half_precision(training):
    average = AveragedModel(training.model)
    average.update_parameters(training.model)


def a_block_in_the_first_iteration_alone(training):
    training.step()
    loss_without_the_block(training)


def clipped_to(clip):
    def use(training):
        training.backward()
        training.precision.step(training.optimizer, clip=clip)

    return use


def a_loss_of(value):
    def use(training):
        with training.precision:
            loss = cross_entropy(training.model(INPUTS), LABELS)
        training.precision.backward(value(loss))

    return use


class Around(torch.optim.Optimizer):
    """Steps by an optimizer that it makes, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.optim = sgd(self.param_groups[0]["params"])

    def step(self, closure=None):
        self.optim.step()


class WithoutHooks(torch.optim.SGD):
    """Its class does not call torch's, as timm's Lookahead."""

    def __init__(self, parameters):
        self.param_groups, self.state, self.defaults = sgd(parameters).param_groups, {}, {}


def prepared(optimizer):
    def use(training):
        net = network()
        training.precision.prepare(net, optimizer(net.parameters()))

    return use


EVERY = tuple({"level": level} for level in ("o0", "o1", "o2", "o3"))
USES = {
    "a part compiled before": (
        lambda training: training.precision.prepare(nn.Sequential(torch.compile(nn.Linear(2, 2)))),
        r"module 0 is already wrapped by torch\.compile; .* comes first",
    ),
    "compiled before": (
        lambda training: training.precision.prepare(torch.compile(nn.Linear(2, 2))),
        r"the model is already wrapped by torch\.compile; .* comes first",
    ),
    "wrapped before": (
        lambda training: training.precision.prepare(nn.DataParallel(nn.Linear(2, 2))),
        "the model is already wrapped by DataParallel; .* comes first",
    ),
    "a model twice": (
        lambda training: training.precision.prepare(training.model),
        r"this model is prepared already: call precision\.prepare\(model, optimizer\) once",
    ),
    "a part of a model twice": (
        lambda training: training.precision.prepare(training.model[4]),
        r"this model is prepared already",
    ),
    "an optimizer twice": (
        lambda training: training.precision.prepare(training.optimizer),
        r"this optimizer is prepared already",
    ),
    "a model that another Precision has": (prepared_by_another, "this model is prepared already, by another Precision"),
    "an optimizer that another Precision has": (optimizer_of_another, "this optimizer is prepared already, by another"),
    "another model's optimizer": (anothers_optimizer, r"steps no parameter of a prepared model.*model\.parameters\(\)"),
    "an optimizer of a model that isn't prepared, too": (
        optimizer_of_another_model_too,
        r"also steps parameters of a Linear that isn't prepared: call precision\.prepare\(model, other, optimizer\)",
    ),
    "a model on another device": (
        lambda training: Precision(device=torch.device("cpu"), mode="o0")._refuse_model(OnGpu()),
        r"the model is on cuda:1, and this precision is for cpu: call model\.to\(precision\.device\) before",
    ),
    "backward without a model": (
        lambda training: of("o1").backward(torch.ones(())),
        r"backward\(loss\) comes after precision\.prepare",
    ),
    "backward inside of the block": (within(Training.backward), r"backward\(loss\) is inside `with precision:`: end"),
    "backward without a block": (loss_without_the_block, "comes after `with precision:` around the forward"),
    "backward without a block after a step": (
        a_block_in_the_first_iteration_alone,
        "comes after `with precision:` around the forward",
    ),
    "a loss that is a number": (a_loss_of(torch.Tensor.item), "takes the loss as a tensor, and was given float"),
    "a loss of several numbers": (a_loss_of(lambda loss: loss.expand(3)), r"of shape \[3\]: take its \.mean\(\)"),
    "a norm of zero": (clipped_to(0.0), r"clip=0\.0 would leave nothing .* write clip=value or None"),
    "a norm that is no number": (clipped_to(float("nan")), "clip=nan would leave nothing"),
    "a norm that is a switch": (clipped_to(True), "the largest norm of the gradients, a number, and was given True"),
    "a norm in words": (clipped_to("1"), "clip= is the largest norm of the gradients, a number, and was given '1'"),
    "a norm without its name": (
        lambda training: training.precision.step(training.optimizer, 1.0),
        r"takes optimizers.* and was given float: write precision\.step\(optimizer, clip=1\.0\)",
    ),
    "a list of optimizers": (
        lambda training: training.precision.step([training.optimizer]),
        "takes optimizers, one after another, and was given list",
    ),
    "a step inside of the block": (
        within(lambda training: training.precision.step(training.optimizer)),
        r"step\(optimizer\) is inside `with precision:`: end the block first",
    ),
    "a step without backward": (
        lambda training: training.precision.step(training.optimizer),
        r"comes after precision\.backward\(loss\), which takes the place of loss\.backward\(\)",
    ),
    "a second step without backward": (backward_twice_around_a_step, "there was none since this optimizer's last step"),
    "an optimizer that was not prepared": (
        lambda training: training.precision.step(sgd(training.model.parameters())),
        r"comes after model, optimizer = precision\.prepare\(model, optimizer\)",
    ),
    "a step under autocast, whose next forward would see old weights": (step_under_autocast, r"under torch\.autocast"),
}
NOT_AT_EVERY_LEVEL = {
    "a step past the precision": (EVERY[1:], step_by_itself, r"call precision\.step\(optimizer\)"),
    "a step with a closure": (
        EVERY[1:],
        step_with_a_closure,
        r"call closure\(\) and then precision\.step\(optimizer\)",
    ),
    "a step of zeros past it": (EVERY[1:], step_of_zeros_by_itself, r"call precision\.step\(optimizer\)"),
    "a forward without the block": (
        EVERY[2:3],
        forward_without_the_block,
        "called outside of `with precision:`, and its half-precision weights need the block",
    ),
    "averages in half precision": (
        (*EVERY[3:], {"level": "o2", "master_weights": False, "dtype": "bfloat16"}),
        averages_in_half_precision,
        r"small changes of an average round to nothing: make it before precision\.prepare\(model\)",
    ),
    "an optimizer in another": (
        EVERY[2:3],
        prepared(Around),
        r"Around steps by the SGD in its \.optim, .*: prepare SGD\(model\.parameters\(\)\) itself",
    ),
    "an optimizer without hooks": (EVERY[1:], prepared(WithoutHooks), r"WithoutHooks .* does not call Optimizer"),
    "a half-precision loss": (EVERY[3:], half_precision_loss, r"the loss is torch\.bfloat16 and should be float32"),
    "a half-precision model": (
        EVERY[:1],
        lambda training: training.precision.prepare(nn.Linear(2, 2).bfloat16()),
        r"parameter weight is torch\.bfloat16, and o0 is float32 throughout: call model\.float\(\) before",
    ),
    "one norm over a shared parameter": (
        ({"level": "o2", "dtype": "bfloat16"},),
        one_norm_over_a_shared_parameter,
        "two of these optimizers step the same parameter",
    ),
}
ORDERS = {name: (EVERY, *use) for name, use in USES.items()} | NOT_AT_EVERY_LEVEL


class OnGpu(nn.Module):
    """A model whose parameters say that they are on a GPU."""

    def parameters(self, recurse=True):
        return iter([types.SimpleNamespace(device=torch.device("cuda", 1))])


@pytest.mark.parametrize("order", ORDERS)
def test_calls_in_another_order_are_refused(order):
    amps, call, message = ORDERS[order]
    for amp in amps:
        training = Training(of(**amp))
        with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
            call(training)


@pytest.mark.parametrize(
    "name", ["from_env", "of", "apply", "cast", "optimizer", "forward", "input", "output", "update"]
)
def test_an_older_versions_name_is_answered_with_the_call_that_took_its_place(name):
    for asked in (Precision, of("o1")):
        with pytest.raises(AttributeError, match=rf"Precision\.{name} is gone: write "):
            getattr(asked, name)


@pytest.mark.parametrize("device", ["gpu", "cuda0", "cpu:x"])
def test_a_device_that_torch_does_not_know_is_refused(device):
    with pytest.raises(SettingsError, match=f"device={device} is not one of auto, cpu, cuda"):
        Precision("o1", device=device)


def test_two_losses_of_one_block_are_stepped_one_after_the_other():
    net, precision = nn.ModuleList(nn.Linear(2, 1) for _ in range(2)), of("o1")
    precision.prepare(net)
    optimizers = [precision.prepare(sgd(part.parameters())) for part in net]
    with precision:
        losses = [part(torch.ones(1, 2)).sum() for part in net]
    for loss, optimizer in zip(losses, optimizers, strict=True):
        precision.backward(loss)
        precision.step(optimizer)


class Wrapped(torch.optim.Optimizer):
    """As accelerate's `prepare` makes one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)


def test_what_a_library_wraps_a_prepared_optimizer_in_stands_for_it():
    trainings = [Training(of("o2")) for _ in range(2)]
    for training in trainings:
        training.backward()
    outcomes = [
        training.precision.step(wrap(training.optimizer), clip=0.1)
        for training, wrap in zip(trainings, (Wrapped, lambda optimizer: optimizer), strict=True)
    ]
    assert outcomes[0].grad_norm == outcomes[1].grad_norm
    assert all(map(torch.equal, *(training.weights() for training in trainings)))
    trainings[0].backward()
    with pytest.raises(RuntimeError, match="comes after model, optimizer"):
        trainings[0].precision.step(Wrapped(sgd(network().parameters())))


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {"scaler": without(state["scaler"], "settings")}, "has no settings: another version"),
        (lambda state: {"scaler": without(state["scaler"], "bad_steps")}, "has no bad_steps: another version"),
        (lambda state: {"scaler": None}, "has no scaler: another version"),
    ],
    ids=["no settings of the scaler", "no bad steps of the scaler", "no scaler"],
)
def test_a_state_of_another_version_is_refused(change, message):
    precision = of("o2", "float16")
    model = precision.prepare(nn.Linear(2, 2))
    precision.prepare(sgd(model.parameters()))
    state = precision.state_dict()
    changed = {**state, **change(state)}
    with pytest.raises(SettingsError, match=message):
        precision.load_state_dict({key: value for key, value in changed.items() if value is not None})


def test_a_parameter_of_no_module_is_stepped_with_a_models():
    precision, net = of("o2"), network()
    temperature = nn.Parameter(torch.ones(()))
    _, optimizer = precision.prepare(net, sgd([*net.parameters(), temperature]))
    with precision:
        loss = cross_entropy(net(INPUTS) * temperature, LABELS)
    precision.backward(loss)
    precision.step(optimizer)
    assert temperature.item() != 1.0


def test_at_o3_an_average_made_before_the_cast_moves_in_float32():
    precision, net = of("o3"), nn.Sequential(network(), nn.BatchNorm1d(10))
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    _, optimizer = precision.prepare(net, sgd(net.parameters()))
    seen = []
    for _ in range(3):
        with precision:
            loss = cross_entropy(net(INPUTS), LABELS)
        precision.backward(loss)
        precision.step(optimizer)
        average.update_parameters(net)
        seen.append([next(average.parameters()).clone(), average.module[1].running_mean.clone()])
    for before, after in itertools.pairwise(seen):
        assert not any(map(torch.equal, before, after))
        assert {value.dtype for value in after} == {torch.float32}
