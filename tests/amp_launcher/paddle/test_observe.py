"""What really ran in a step in Paddle, as far as a CPU shows it: nothing is taken for applied."""

from __future__ import annotations

import functools
import warnings

import numpy
import paddle
import pytest
from paddle import _C_ops, nn
from paddle.base import core

from amp_launcher.paddle import devices
from amp_launcher.paddle.observe.observer import COUNTING, PrecisionObserver
from amp_launcher.paddle.observe.step_calls import MOST_CALLS, StepCalls, around_optimizer_steps, stepped_elements
from amp_launcher.paddle.precision import Precision, high_level_api, precision_of
from amp_launcher.precision import verdict
from amp_launcher.precision.observation import Guard
from tests.amp_launcher.paddle.forced import float32, forced


def train(precision, net=None, observed=True):
    """One observed step, judged."""
    paddle.seed(0)
    paddle.set_device("cpu")
    net = net or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, optimizer = precision.prepare(net, optimizer)
        observer = PrecisionObserver(net, precision.resolved)
        with observer.step(1):
            with precision:
                loss = (net(paddle.ones([5, 8])) ** 2).mean()
            precision.backward(loss)
            precision.step(optimizer)
            optimizer.clear_grad()
    return verdict.observed(observer.reports), observer.reports[0]


def test_float32_is_proved_with_its_work_counted_by_hand():
    observed, report = train(precision_of(float32()))
    assert observed["verdict"] == "proved", observed["why"]
    work = {call["backward"]: call["flops"] for call in report["calls"]}
    forward = 2 * 5 * (8 * 16 + 16 * 4)
    # The input of the first layer learns nothing: its gradient is not computed.
    assert work == {False: forward, True: 2 * forward - 2 * 5 * 8 * 16}
    assert report["optimizer"] == {"float32": 8 * 16 + 16 + 16 * 4 + 4}
    assert report["float32"]["arithmetic"] == {"matmul": "float32"}


def test_no_kernel_is_counted_while_a_graph_runs_as_its_threads_would_corrupt_the_counts(monkeypatch):
    """Paddle counts without a lock: a process with threads that count crashes in one of some thousand steps."""
    counting = []

    def run(run_program, *given, **named):
        counting.append(paddle.get_flags(COUNTING)[COUNTING])
        return run_program(*given, **named)

    @paddle.jit.to_static(full_graph=True)
    def mean(given):
        return paddle.mean(paddle.abs(given))

    monkeypatch.setattr(_C_ops, "run_program", functools.partial(run, _C_ops.run_program))
    observer = PrecisionObserver(nn.Layer(), float32().resolved)
    for number in range(2):
        with observer.step(number):
            mean(paddle.ones([8, 16]))
    assert counting == [0, 0]


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_switched_as_asked_and_the_switches_are_observers(monkeypatch, on):
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(devices, "capability_of", lambda kind: (8, 0))
        precision = Precision("o0", device="cuda", tf32=on)
    assert (precision.resolved.tf32, core.get_cublas_switch(), core.get_cudnn_switch()) == (on, on, on)
    observed = PrecisionObserver(nn.Layer(), precision.resolved)._float32()
    assert observed["switches"] == {"set_cublas_switch": str(on), "set_cudnn_switch": str(on)}
    assert Precision("o0").resolved.tf32 is core.get_cublas_switch() is False


def test_a_convolution_is_counted():
    net = nn.Sequential(nn.Unflatten(1, [2, 2, 2]), nn.Conv2D(2, 6, 2, groups=2), nn.Flatten())
    observed, report = train(precision_of(float32()), net)
    assert observed["verdict"] == "proved", observed["why"]
    forward = next(call for call in report["calls"] if not call["backward"])
    assert (forward["operation"], forward["flops"]) == ("conv2d", 2 * (5 * 6) * (1 * 2 * 2))


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_a_level_forced_onto_a_cpu_is_contradicted_and_never_proved(level):
    observed, _ = train(forced(level))
    assert observed["verdict"] == "contradicted"
    assert "0.0% of forward and 0.0% of backward ran in bfloat16" in observed["why"]


class Around(nn.Layer):
    """A linear layer in a model that does something else beside it."""

    def __init__(self, compute=lambda outputs: outputs):
        super().__init__()
        self.inner, self.low, self.compute = nn.Linear(8, 8), nn.Linear(2, 2), compute

    def forward(self, inputs):
        return self.compute(self.inner(inputs))


@pytest.mark.parametrize(
    ("compute", "low", "verdict", "why"),
    [
        (
            *(lambda outputs: paddle.addmm(outputs, outputs, paddle.ones([8, 8])), "float32", "unknown"),
            "addmm can't be counted",
        ),
        (
            *(lambda outputs: nn.Bilinear(8, 8, 2)(outputs, outputs), "float32", "unknown"),
            "bilinear_tensor_product can't be counted",
        ),
        (lambda outputs: outputs, "bfloat16", "contradicted", "6 parameters are bfloat16"),
    ],
    ids=["an operation that is not counted", "a layer that is not counted", "half parameters at o0"],
)
def test_what_a_model_does_beside_its_layers_is_not_passed_over(compute, low, verdict, why):
    net = Around(compute)
    net.low.to(dtype=low)
    observed, _ = train(precision_of(float32()), net)
    assert (observed["verdict"], why in observed["why"]) == (verdict, True), observed["why"]


@pytest.mark.parametrize(
    ("compute", "operation", "flops"),
    [
        (lambda outputs: paddle.matmul(outputs, paddle.ones([8, 4])), "matmul", 2 * 5 * 8 * 4),
        (lambda outputs: outputs @ paddle.ones([8, 4]), "matmul", 2 * 5 * 8 * 4),
        (lambda outputs: paddle.matmul(x=outputs, y=outputs, transpose_x=True), "matmul", 2 * 8 * 5 * 8),
        (lambda outputs: paddle.bmm(outputs.unsqueeze(1), paddle.ones([5, 8, 8])), "bmm", 2 * 5 * 8 * 8),
        (lambda outputs: nn.Conv2DTranspose(2, 3, 2)(outputs.reshape([5, 2, 2, 2])), "conv2d_transpose", 2 * 40 * 12),
        (lambda outputs: nn.Conv3D(2, 3, 1)(outputs.reshape([5, 2, 2, 2, 1])), "conv3d", 2 * 5 * 3 * 4 * 2),
        (lambda outputs: nn.LSTM(4, 3)(outputs.reshape([5, 2, 4]))[0], "rnn", 2 * 10 * 4 * 3 * (4 + 3)),
        (lambda outputs: paddle.tensor.linalg.matmul(outputs, paddle.ones([8, 4])), "matmul", 2 * 5 * 8 * 4),
        (lambda outputs: nn.functional.linear(outputs, paddle.ones([8, 4])), "matmul", 2 * 5 * 8 * 4),
    ],
    ids=[
        "matmul",
        "operator",
        "by name",
        "bmm",
        "transposed convolution",
        "3D convolution",
        "LSTM",
        "imported",
        "functional",
    ],
)
def test_products_of_other_layers_and_of_none_are_counted_by_hand(compute, operation, flops):
    observed, report = train(precision_of(float32()), Around(compute))
    assert observed["verdict"] == "proved", observed["why"]
    work = {call["functions"][0]: call["flops"] for call in report["calls"] if not call["backward"]}
    layer = 2 * 5 * 8 * 8
    assert work == ({"linear": layer, operation: flops}), work
    assert sum(call["flops"] for call in report["calls"] if call["backward"]) >= layer


def test_float64_is_no_disagreement_of_the_observers():
    net = Around()
    net.to(dtype="float64")
    net.compute, inner = (lambda outputs: outputs), net.inner.forward
    net.inner.forward = lambda inputs: inner(inputs.astype("float64"))
    observed, report = train(precision_of(float32()), net)
    assert (report["audit"], {call["dtype"] for call in report["calls"]}) == ("", {"float64"}), observed


def test_what_the_lists_name_is_seen_of_the_model_and_not_of_the_loop_beside_it():
    _, report = train(forced("o1", allow=("elementwise_add",), deny=("relu", "tanh")))
    assert report["listed"] == [
        {"function": "add", "dtypes": ["float32"], "calls": 2},
        {"function": "relu", "dtypes": ["float32"], "calls": 1},
    ]
    assert report["unseen"] == []


@pytest.mark.parametrize(
    "name",
    [
        "paddle.base.core.get_low_precision_op_list",
        "paddle.base.core.clear_low_precision_op_list",
        "paddle.base.core.get_cublas_switch",
        "amp_launcher.paddle.observe.step_calls.stepped_elements",
        "amp_launcher.paddle.observe.products._first",
    ],
)
def test_without_a_name_that_the_observer_needs_training_goes_on_and_is_unknown(monkeypatch, name):
    monkeypatch.delattr(name)
    observed, report = train(precision_of(float32()))
    assert (observed["verdict"], name.rpartition(".")[2] in observed["why"]) == ("unknown", True), observed["why"]
    assert report["calls"] == []


def test_entries_that_nothing_matched_are_told_apart():
    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            self.spare = nn.Linear(4, 4)

        def forward(self, inputs):
            return self[2](self[1](self[0](inputs)))

    _, report = train(forced("o2", keep_fp32=("spare", "2"), deny=("softmax", "relu")), Net())
    assert report["matched"] == ["2"]
    assert verdict.unmatched([report]) == ["amp.deny=[softmax]", "amp.keep_fp32=[spare]"]


def test_what_paddles_model_steps_is_seen():
    precision = float32()
    net, stepped = nn.Linear(4, 2), []
    model = paddle.Model(net)
    high_level_api.prepare(precision, model, paddle.optimizer.SGD(0.1, parameters=net.parameters()), nn.MSELoss())
    batch = numpy.ones((3, 4), numpy.float32), numpy.ones((3, 2), numpy.float32)
    with around_optimizer_steps(Guard(), lambda optimizer: stepped.append(stepped_elements(optimizer))):
        high_level_api.train_batch(precision, model, *batch)
    assert stepped == [{"float32": 4 * 2 + 2}]


def test_a_long_evaluation_before_the_first_step_is_counted_in_few_records():
    calls = StepCalls(lambda layer: False, Guard(), "cpu")
    layer = nn.Linear(2, 2)
    with calls.recording(lambda layer: None), paddle.no_grad():
        for _ in range(3 * MOST_CALLS):
            layer(paddle.ones([1, 2]))
    assert len(calls.calls) <= MOST_CALLS
    assert sum(call["calls"] for call in calls.calls) == 3 * MOST_CALLS
