"""The calls of a training loop in Paddle: at o0 as they run, else what is asked of Paddle, as no CPU applies it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any

import numpy
import paddle
import pytest
from paddle import nn
from paddle.nn.functional import cross_entropy

from amp_launcher.paddle import Precision, devices
from amp_launcher.paddle.observe.observer import PrecisionObserver
from amp_launcher.precision.levels import PRESETS
from amp_launcher.typed import SettingsError
from tests.amp_launcher.contract.frameworks import scaling_on_a_cpu
from tests.amp_launcher.loss_scale_rules import PaddleRule
from tests.amp_launcher.paddle.forced import forced

INPUTS = numpy.random.default_rng(0).standard_normal((20, 2, 8, 6)).astype("float32")
LABELS = numpy.random.default_rng(1).integers(0, 3, (20, 2, 8))
HALF = {"o1": "O1", "o2": "O2", "o3": "O2"}


class Job:
    """A network and its head, an optimizer each, in steps of two micro-batches."""

    def __init__(self, precision: Precision | None) -> None:
        self.precision = precision
        paddle.seed(0)
        self.net, self.head = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1D(16), nn.Dropout(0.2)), nn.Linear(16, 3)
        rate = paddle.optimizer.lr.StepDecay(0.05, step_size=4)
        self.optimizers = [
            paddle.optimizer.AdamW(rate, parameters=self.net.parameters(), weight_decay=0.1),
            paddle.optimizer.Momentum(0.1, 0.9, parameters=self.head.parameters()),
        ]
        if precision is not None:
            given = (self.net, self.head, *self.optimizers)
            assert precision.prepare(*given) == given

    def step(self, number: int) -> float:
        paddle.seed(number)
        total = 0.0
        for inputs, labels in zip(paddle.to_tensor(INPUTS[number]), paddle.to_tensor(LABELS[number]), strict=True):
            with contextlib.nullcontext() if self.precision is None else self.precision:
                loss = cross_entropy(self.head(self.net(inputs)), labels) / 2
            loss.backward() if self.precision is None else self.precision.backward(loss)
            total += loss.item()
        for optimizer in self.optimizers if self.precision is None else ():
            optimizer.step()
        if self.precision is not None:
            self.precision.step(*self.optimizers)
        for optimizer in self.optimizers:
            optimizer.clear_grad()
        self.optimizers[0]._learning_rate.step()
        return total

    def parts(self) -> list[Any]:
        return [self.net, self.head, *self.optimizers, *([self.precision] if self.precision else [])]


@pytest.mark.parametrize("loads", ["before prepare", "after prepare"])
def test_at_o0_it_is_bit_for_bit_the_plain_loop_and_resumes_so_from_what_a_script_saves(tmp_path, loads):
    process = paddle.utils.unique_name.guard  # in which names count from 0
    with process():
        plain = Job(None)
        expected = [plain.step(number) for number in range(20)]
    with process():
        ours = Job(Precision("o0"))
        assert [ours.step(number) for number in range(10)] == expected[:10]
        paddle.save([part.state_dict() for part in ours.parts()], str(tmp_path / "saved"))
    states = paddle.load(str(tmp_path / "saved"))
    with process():
        resumed = Job(None) if loads == "before prepare" else Job(Precision("o0"))
        for part, state in zip(resumed.parts(), states, strict=loads == "after prepare"):
            part.load_state_dict(state) if isinstance(part, Precision) else part.set_state_dict(state)
        if loads == "before prepare":
            resumed.precision = Precision("o0")
            resumed.precision.prepare(resumed.net, resumed.head, *resumed.optimizers)
        assert [resumed.step(number) for number in range(10, 20)] == expected[10:]
    for one, other in zip(plain.net.parameters(), resumed.net.parameters(), strict=True):
        assert (one == other).all()


Named = collections.namedtuple("Named", "logits count")


@dataclasses.dataclass(frozen=True)
class Output:
    logits: Any
    rest: Any


class Halving(nn.Layer):
    """Gives half precision, as a GPU would, in the structure that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, inputs, *, given=lambda half: half):
        if inputs is None:
            raise ValueError("no inputs")
        return given(self.inner(inputs).astype("bfloat16"))


@pytest.fixture
def entered(monkeypatch):
    """The words of each `auto_cast` that is open now, outermost first."""
    entered = []

    @contextlib.contextmanager
    def auto_cast(**words):
        entered.append(words)
        try:
            yield
        finally:
            entered.pop()

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    return entered


@pytest.mark.parametrize("level", HALF)
def test_the_models_own_call_runs_under_auto_cast_and_the_loss_does_not(entered, level):
    precision = forced(level, **({"deny": ("softmax",)} if level == "o1" else {}))
    net, seen = Halving(), []
    precision.prepare(net)
    with precision:
        outputs = net(paddle.ones([1, 2]), given=lambda half: seen.append(dict(entered[-1])) or half)
        assert (outputs.dtype, entered) == (paddle.float32, [])
    assert (seen[0]["level"], seen[0]["dtype"]) == (HALF[level], "bfloat16")
    assert ("softmax" in seen[0]["custom_black_list"]) is (level == "o1")


def test_what_a_prepared_model_gives_is_float32_in_whatever_structure(entered):
    net, precision = Halving(), forced("o1")
    precision.prepare(net)

    def of(half):
        return {"named": Named(half, 3), "all": [half, (Output(half, half.astype("float64")),)], "other": "word"}

    with precision:
        outputs = net(paddle.ones([1, 2]), given=of)
    inner = outputs["all"][1][0]
    assert (type(outputs["named"]), type(inner), outputs["named"].count) == (Named, Output, 3)
    floats = [outputs["named"].logits, outputs["all"][0], inner.logits]
    assert [tensor.dtype for tensor in (*floats, inner.rest)] == [paddle.float32] * 3 + [paddle.float64]


@pytest.mark.parametrize("level", HALF)
def test_outside_of_the_block_o1_is_float32_and_half_weights_are_refused(entered, level):
    net, precision, seen = Halving(), forced(level), []
    precision.prepare(net)
    if level == "o1":
        net(paddle.ones([1, 2]), given=lambda half: seen.append(len(entered)))
        assert seen == [0]
        return
    with pytest.raises(RuntimeError, match="called outside of `with precision:`, and its half-precision weights"):
        net(paddle.ones([1, 2]))


def test_a_forward_that_raises_leaves_no_context_behind(entered):
    net, precision = Halving(), forced("o1")
    precision.prepare(net)
    with pytest.raises(ValueError, match="no inputs"), precision:
        net(None)
    assert entered == []


def test_what_a_container_without_a_forward_holds_is_prepared(entered):
    nets, precision, seen = nn.LayerList([Halving(), Halving()]), forced("o1"), []
    precision.prepare(nets)
    with precision:
        outputs = [net(paddle.ones([1, 2]), given=lambda half: seen.append(len(entered)) or half) for net in nets]
    assert (seen, [tensor.dtype for tensor in outputs]) == ([1, 1], [paddle.float32] * 2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_observer_sees_the_dtype_of_the_product_whatever_a_model_makes_of_its_output(dtype):
    class Half(nn.Linear):
        def forward(self, inputs):
            product = paddle.matmul(inputs.astype(dtype), self.weight.astype(dtype))
            return product.astype("bfloat16")  # and a prepared model gives float32

    net, precision = Half(2, 2), forced("o1")
    observer = PrecisionObserver(net, precision.resolved)
    precision.prepare(net)
    with observer.step(1), precision:
        net(paddle.ones([1, 2])).sum().backward()
    assert {(call["dtype"], call["backward"]) for call in observer.reports[0]["calls"]} == {
        (dtype, False),
        (dtype, True),
    }


# The loss scale, at o1 in float16: Paddle's own scaler, told of a GPU.

SCALE = dataclasses.replace(PRESETS["paddle"], init=64.0, growth_every=2, backoff_every=1)


class Scaled:
    """Two networks of one weight each at o1 in float16, whose gradients are the arguments of `backward`."""

    def __init__(self, monkeypatch) -> None:
        scaling_on_a_cpu(monkeypatch)
        self.precision = forced("o1", SCALE, dtype="float16")
        self.nets = [nn.Linear(1, 1, bias_attr=False) for _ in range(2)]
        for net in self.nets:
            net.weight.set_value(paddle.zeros([1, 1]))
        self.optimizers = [paddle.optimizer.SGD(1.0, parameters=net.parameters()) for net in self.nets]
        self.precision.prepare(*self.nets, *self.optimizers)

    def backward(self, *gradients: float) -> None:
        with self.precision:
            each = zip(self.nets, gradients, strict=False)
            loss = sum(-net(paddle.full([1, 1], gradient)).sum() for net, gradient in each)
        self.precision.backward(loss)

    def step(self, *which: int, clip: float | None = None):
        outcome = self.precision.step(*(self.optimizers[index] for index in which), clip=clip)
        for index in which:
            self.optimizers[index].clear_grad()
        return outcome

    def weights(self) -> list[float]:
        return [net.weight.item() for net in self.nets]


@pytest.mark.parametrize("together", [True, False])
def test_two_optimizers_move_the_scale_once_an_iteration_whether_one_call_steps_them_or_two(monkeypatch, together):
    job, rule = Scaled(monkeypatch), PaddleRule(64.0, 2.0, 0.5, growth_every=2, backoff_every=1)
    pairs = [(1.0, 1.0), (1.0, numpy.inf), (numpy.inf, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
    for pair in pairs:
        job.backward(*pair)
        for which in [(0, 1)] if together else [(0,), (1,)]:
            outcome = job.step(*which)
            assert outcome.overflowed is (numpy.inf in [pair[index] for index in which])
        assert job.precision.scale == rule.iterate(numpy.inf in pair)
    assert (job.weights(), job.precision.skipped_total) == ([5.0, 5.0], 2)


def test_one_that_steps_more_often_moves_the_scale_and_the_others_gradients_follow(monkeypatch):
    job = Scaled(monkeypatch)
    job.backward(1.0, 0.5)  # the second waits for its step
    scales = []
    for _ in range(5):
        job.step(0)
        scales.append(job.precision.scale)
        job.backward(1.0)
    assert scales == [64.0, 64.0, 128.0, 128.0, 256.0]
    assert job.nets[1].weight.grad.item() == -0.5 * 256
    job.step(1)
    assert (job.weights(), job.precision.skipped_total) == ([5.0, 0.5], 0)


def test_clip_is_one_norm_over_the_unscaled_gradients_of_all(monkeypatch):
    job = Scaled(monkeypatch)
    job.backward(3.0, 4.0)
    assert float(job.step(0, 1, clip=1.0).grad_norm) == 5.0
    assert job.weights() == pytest.approx([0.6, 0.8])
    job.backward(0.3, 0.4)
    job.step(0, 1, clip=1.0)
    assert job.weights() == pytest.approx([0.9, 1.2]), "a smaller norm stays"
    job.backward(numpy.inf, 1.0)
    outcome = job.step(0, 1, clip=1.0)
    assert (outcome.overflowed, job.precision.skipped_total) == (True, 2), "they have no norm in common"
    assert job.weights() == pytest.approx([0.9, 1.2])


def test_clip_goes_without_a_loss_scale_too_and_over_groups_and_other_dtypes():
    precision, nets = Precision("o0"), [nn.Linear(1, 1, bias_attr=False) for _ in range(2)]
    nets[1].to(dtype="float64")
    groups = [{"params": net.parameters()} for net in nets]
    optimizer = paddle.optimizer.SGD(1.0, parameters=groups)
    precision.prepare(*nets, optimizer)
    with precision:
        loss = nets[0](paddle.full([1, 1], 3.0)).sum()
        loss += nets[1](paddle.full([1, 1], 4.0, "float64")).sum().astype("float32")
    precision.backward(loss)
    assert precision.step(optimizer, clip=2.5).grad_norm.item() == 5.0
    assert [net.weight.grad.item() for net in nets] == pytest.approx([1.5, 2.0])


# Refusals


class Training:
    def __init__(self, level: str) -> None:
        self.precision = forced(level) if level != "o0" else Precision("o0")
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.optimizer = sgd(self.model)
        self.precision.prepare(self.model, self.optimizer)

    def enter(self) -> None:
        with self.precision:
            pass

    def backward(self) -> None:
        with self.precision:
            loss = self.model(paddle.ones([1, 2])).sum()
        self.precision.backward(loss)


def sgd(model):
    return paddle.optimizer.SGD(0.1, parameters=model.parameters())


def within(call):
    def use(training):
        with training.precision:
            call(training)

    return use


def again(training):
    training.backward()
    training.precision.step(training.optimizer)
    training.precision.step(training.optimizer)


def without_a_block(training):
    training.backward()
    training.precision.step(training.optimizer)
    training.precision.backward(training.model[0].weight.sum())


def a_loss(value):
    def use(training):
        with training.precision:
            outputs = training.model(paddle.ones([1, 2]))
        training.precision.backward(value(outputs))

    return use


def clipped_to(clip):
    def use(training):
        training.backward()
        training.precision.step(training.optimizer, clip=clip)

    return use


def anothers_optimizer(training):
    training.precision.prepare(nn.Linear(2, 2), sgd(nn.Linear(2, 2)))


USES = {
    "a model twice": (
        lambda training: training.precision.prepare(training.model),
        r"this model is prepared already: call precision\.prepare\(model, optimizer\) once",
    ),
    "a part of it": (lambda training: training.precision.prepare(training.model[1]), "this model is prepared already"),
    "by another": (lambda training: forced("o1").prepare(training.model), "prepared already.* with one Precision for"),
    "an optimizer twice": (
        lambda training: training.precision.prepare(training.optimizer),
        "this optimizer is prepared already",
    ),
    "another model's optimizer": (anothers_optimizer, r"steps no parameter of a prepared model: make it from model\."),
    "an optimizer alone": (
        lambda training: Precision("o0").prepare(sgd(nn.Linear(2, 2))),
        "an optimizer comes with its model",
    ),
    "a model in DataParallel": (
        lambda training: training.precision.prepare(paddle.DataParallel(nn.Linear(2, 2))),
        r"already wrapped by paddle\.DataParallel; precision\.prepare\(model\) comes first",
    ),
    "a function": (lambda training: training.precision.prepare(sgd), "takes models and optimizers of Paddle, and was"),
    "nothing": (lambda training: training.precision.prepare(), "and was given nothing"),
    "backward before prepare": (
        lambda training: Precision("o0").backward(paddle.ones([])),
        r"backward\(loss\) comes after precision\.prepare",
    ),
    "backward within the block": (
        within(lambda training: training.precision.backward(paddle.ones([]))),
        r"backward\(loss\) is inside `with precision:`: end the block first",
    ),
    "backward without a block": (without_a_block, "comes after `with precision:` around the forward and the loss"),
    "a loss that is a number": (a_loss(lambda outputs: 1.0), "takes the loss as a tensor, and was given float"),
    "a loss of two numbers": (a_loss(lambda outputs: outputs), r"of shape \[1, 2\]: take its \.mean\(\) or \.sum\(\)"),
    "a step without backward": (
        lambda training: training.precision.step(training.optimizer),
        r"comes after precision\.backward\(loss\), which takes the place of loss\.backward\(\)",
    ),
    "a second step": (again, "there was none since this optimizer's last step"),
    "a step within the block": (
        within(lambda training: training.precision.step(training.optimizer)),
        r"step\(optimizer\) is inside `with precision:`: end the block first",
    ),
    "a block in a block": (within(Training.enter), "inside of another one: one is enough"),
    "a step of nothing": (lambda training: training.precision.step(), "needs the optimizers that step"),
    "a step of a list": (lambda training: training.precision.step([training.optimizer]), "and was given list"),
    "an optimizer that was not prepared": (
        lambda training: training.precision.step(sgd(training.model)),
        r"comes after model, optimizer = precision\.prepare\(model, optimizer\)",
    ),
    "a norm of zero": (clipped_to(0.0), r"clip=0\.0 would leave nothing"),
    "a norm that is no number": (clipped_to(float("nan")), "clip=nan would leave nothing"),
    "a norm that is a text": (clipped_to("1"), "the largest norm of the gradients, a number, and was given '1'"),
}


@pytest.mark.parametrize("use", USES)
def test_calls_in_another_order_are_refused_in_a_sentence(use):
    call, message = USES[use]
    for level in ("o0", "o1", "o2", "o3"):
        with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
            call(Training(level))


@pytest.mark.parametrize(
    ("mode", "words", "problem"),
    [
        ("o7", {}, r"precision=o7 is not one of o0, o1, o2, o3, .*bf16-mixed"),
        ("o1", {}, "on a CPU Paddle applies mixed precision to static graphs alone"),
        ("bf16-mixed", {}, "on a CPU Paddle applies mixed precision to static graphs alone"),
        ("fp8", {}, "torch"),
        ("o0", {"loss_scale": "often"}, "loss_scale=often is not one of"),
    ],
)
def test_a_mode_that_is_not_there_is_refused_in_a_sentence(mode, words, problem):
    with pytest.raises(SettingsError, match=problem):
        Precision(mode, **words)


def test_without_a_mode_it_says_which_it_took(monkeypatch, capsys):
    """On a GPU, which Paddle is said to have here; on a CPU o1 is refused."""
    with pytest.raises(SettingsError, match=r"static graphs alone.*say amp=o0"):
        Precision()
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(paddle, "get_device", lambda: "gpu:0")
        on_gpu.setattr(devices, "capability_of", lambda kind: (8, 0))
        Precision()
    said = "amp-launcher: Precision() outside of the launcher is o1 (bfloat16) on cuda; "
    assert capsys.readouterr().err.startswith(said)
    Precision("o0")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["from_env", "of", "cast", "optimizer", "forward", "input", "output", "update"])
def test_an_older_versions_name_is_answered_with_the_call_that_took_its_place(name):
    with pytest.raises(AttributeError, match=rf"Precision\.{name} is gone: write "):
        getattr(Precision, name)
