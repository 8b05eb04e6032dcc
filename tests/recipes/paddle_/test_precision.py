"""Precision in Paddle as far as a CPU shows it: what is asked of Paddle, and that nothing is taken for applied."""

from __future__ import annotations

import dataclasses
import json
import types
import warnings

import numpy
import paddle
import pytest
from paddle import nn
from paddle.amp import grad_scaler
from paddle.base import core

from recipes import operations, verdict
from recipes.levels import PRESETS, Amp, LossScale, check
from recipes.paddle_ import precision as precision_module
from recipes.paddle_.observe import Witness
from recipes.paddle_.precision import MECHANISMS, AutoCast, Decorated, Precision
from recipes.paddle_.simplenet import Net
from recipes.paddle_.static_graph import GraphWitness, StaticGraph
from recipes.settings import Settings
from recipes.simplenet import SimplenetSettings
from recipes.typed import SettingsError, plain
from tests.recipes.loss_scale_rules import PaddleRule

NO_SCALE = LossScale(mode="none")


def forced(level: str, loss_scale: LossScale = NO_SCALE, dtype: str = "bfloat16", **amp) -> Precision:
    """The mechanism of a level on a CPU, past the table that refuses it."""
    mechanism = {"o1": "auto_cast", "o2": "decorate_auto_cast", "o3": "decorate_no_masters"}[level]
    return MECHANISMS[mechanism](
        amp=Amp(level=level, **amp), loss_scale=loss_scale, dtype=dtype, mechanism=mechanism, device="cpu"
    )


def train(precision, net=None, witnessed=True):
    """One witnessed step, judged."""
    paddle.seed(0)
    paddle.set_device("cpu")
    net = net or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, optimizer = precision.decorate(net, optimizer)
        witness = Witness(net, precision)
        with witness.step(1):
            with precision.forward():
                loss = (net(paddle.ones([5, 8])).astype("float32") ** 2).mean()
            precision.backward(loss)
            precision.step(optimizer)
            precision.update()
            optimizer.clear_grad()
    return verdict.observed(witness.reports), witness.reports[0]


def o0() -> Precision:
    return Precision.of(Amp(level="o0"), LossScale(), "cpu")


def test_float32_is_proved_with_its_work_counted_by_hand():
    found, report = train(o0())
    assert found["verdict"] == "proved", found["why"]
    work = {each["backward"]: each["flops"] for each in report["calls"]}
    forward = 2 * 5 * (8 * 16 + 16 * 4)
    # The input of the first layer learns nothing: its gradient is not computed.
    assert work == {False: forward, True: 2 * forward - 2 * 5 * 8 * 16}
    assert report["optimizer"] == {"float32": 8 * 16 + 16 + 16 * 4 + 4}
    assert report["float32"]["arithmetic"] == {"matmul": "float32"}


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_switched_as_asked_and_the_switches_are_witnesses(monkeypatch, on):
    monkeypatch.setattr(precision_module.devices, "capability_of", lambda kind: (8, 0))
    precision = Precision.of(Amp(level="o0"), LossScale(), "cuda", tf32=on)
    assert (precision.tf32, core.get_cublas_switch(), core.get_cudnn_switch()) == (on, on, on)
    found = Witness(nn.Layer(), precision)._float32()
    assert found["switches"] == {"set_cublas_switch": str(on), "set_cudnn_switch": str(on)}
    assert Precision.of(Amp(level="o0"), LossScale(), "cpu").tf32 is core.get_cublas_switch() is False


def test_a_convolution_is_counted():
    net = nn.Sequential(nn.Unflatten(1, [2, 2, 2]), nn.Conv2D(2, 6, 2, groups=2), nn.Flatten())
    found, report = train(o0(), net)
    assert found["verdict"] == "proved", found["why"]
    forward = next(each for each in report["calls"] if not each["backward"])
    assert (forward["operation"], forward["flops"]) == ("conv2d", 2 * (5 * 6) * (1 * 2 * 2))


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_a_level_forced_onto_a_cpu_is_contradicted_and_never_proved(level):
    found, _ = train(forced(level))
    assert found["verdict"] == "contradicted"
    assert "0.0% of forward ran in bfloat16" in found["why"]


def test_a_product_outside_of_the_layers_is_not_passed_over():
    class Hidden(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, inputs):
            return paddle.matmul(self.inner(inputs), paddle.ones([8, 4]))

    found, _ = train(o0(), Hidden())
    assert found["verdict"] == "unknown"
    assert "layers made 1 in float32 products in forward, and Paddle counted 2 in float32" in found["why"]


def test_an_operation_that_cannot_be_counted_is_not_passed_over():
    class Batched(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, inputs):
            square = self.inner(inputs).unsqueeze(1)
            return paddle.bmm(square, paddle.ones([5, 8, 8]))

    found, _ = train(o0(), Batched())
    assert (found["verdict"], "bmm can't be counted" in found["why"]) == ("unknown", True)


def test_half_parameters_under_o0_are_seen():
    class Half(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.low = nn.Linear(8, 4), nn.Linear(2, 2)
            self.low.to(dtype="bfloat16")

        def forward(self, inputs):
            return self.inner(inputs)

    found, _ = train(o0(), Half())
    assert (found["verdict"], "6 parameters are bfloat16" in found["why"]) == ("contradicted", True)


def test_operation_lists_reach_paddle_under_all_names_it_has_for_them():
    lists = AutoCast(
        amp=Amp(level="o1", allow=("elementwise_add",), deny=("softmax", "conv2d")),
        loss_scale=NO_SCALE,
        dtype="float16",
        mechanism="auto_cast",
        device="cpu",
    ).lists()
    assert set(lists["custom_white_list"]) >= {"add", "elementwise_add"}
    assert set(lists["custom_black_list"]) >= {"softmax", "conv2d", "depthwise_conv2d"}


@pytest.mark.parametrize("preset", ["paddle", "dynamic", "static"])
def test_the_scaler_has_the_parameters_that_were_asked_for(preset):
    scale = PRESETS[preset]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU the scaler says that it does nothing
        configs = AutoCast(
            amp=Amp(level="o1"), loss_scale=scale, dtype="float16", mechanism="auto_cast", device="cpu"
        ).amp_configs()
    assert configs["level"] == "O1"
    assert (configs["init_loss_scaling"], configs["decr_every_n_nan_or_inf"]) == (scale.init, scale.backoff_every)
    assert configs["use_dynamic_loss_scaling"] is (preset != "static")


def test_paddles_model_is_told_float16_or_nothing():
    with pytest.raises(SettingsError, match=r"paddle\.Model knows float16 alone"):
        forced("o1").amp_configs()
    assert o0().amp_configs() is None


@pytest.mark.parametrize(("level", "masters"), [("o1", None), ("o2", True), ("o3", False)])
def test_a_static_graph_is_decorated_with_lists_guard_and_masters(monkeypatch, level, masters):
    asked = {}
    monkeypatch.setattr(paddle.static.amp, "decorate", lambda optimizer, **words: asked.update(words))
    lists = {"allow": ("elementwise_add",), "deny": ("softmax",)} if level != "o3" else {}
    forced(level, **lists).static(None)
    assert (asked["level"], asked["dtype"]) == ("O1" if level == "o1" else "O2", "bfloat16")
    assert (asked["master_weight"], asked["use_amp_guard"]) == (masters, level != "o1")
    assert (asked["init_loss_scaling"], asked["use_dynamic_loss_scaling"]) == (1.0, False)
    if lists:
        assert {"add", "elementwise_add"} <= asked["amp_lists"].white_list
        assert "softmax" in asked["amp_lists"].black_list


def static_graph(precision: Precision, layers: int = 2, guarded: bool = False) -> StaticGraph:
    return StaticGraph(
        make=lambda: Net(SimplenetSettings(width=8, layers=layers)),
        make_optimizer=lambda net: paddle.optimizer.SGD(0.1, parameters=net.parameters()),
        precision=precision,
        shape=(4, 8),
        guarded=guarded,
        kind="cpu",
        seed=0,
    )


@pytest.fixture
def supported(monkeypatch):
    """Paddle asks which operations a GPU can do in half precision: here it is told, those that a CPU can in float32.

    So its rewrite is real, and what it made of a program can be read. Nothing can be run of it.
    """
    real = core.op_supported_infos
    monkeypatch.setattr(
        core, "op_supported_infos", lambda place, dtype: real("CPU", core.VarDesc.VarType.FP32), raising=True
    )


def read(precision: Precision, **how):
    """What is judged of a program as Paddle rewrote it, and the report."""
    witness = GraphWitness(static_graph(precision, **how), precision)
    with witness.step(1):
        pass
    return verdict.observed(witness.reports), witness.reports[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_for_a_gpu_the_static_rewrite_makes_of_a_program_what_the_level_means(supported, level, dtype):
    found, report = read(forced(level, dtype=dtype))
    assert (found["verdict"], found["dtype"], found["half_flop_share"]) == ("proved", dtype, 1.0)
    assert set(found["param_dtypes"]) == {"float32" if level == "o1" else dtype}
    assert set(report["optimizer"]) == {dtype if level == "o3" else "float32"}


@pytest.mark.parametrize("level", ["o2", "o3"])
def test_for_a_gpu_the_static_rewrite_leaves_the_loss_in_float32(supported, level):
    graph = static_graph(forced(level, dtype="float16"))
    block = graph.program.global_block()
    (squared,) = (each for each in block.ops if each.type == "square")
    assert precision_module.dtype_name(block.var(squared.input("X")[0]).dtype) == "float32"


@pytest.mark.parametrize(
    ("amp", "function", "dtype"),
    [
        ({"allow": ("elementwise_add",)}, "add", "float16"),
        ({"deny": ("elementwise_add",)}, "add", "float32"),
        ({"deny": ("matmul_v2",)}, "matmul", "float32"),
    ],
)
def test_for_a_gpu_the_static_rewrite_follows_custom_lists_and_that_is_seen(supported, amp, function, dtype):
    found, report = read(forced("o1", dtype="float16", **amp))
    assert report["listed"] == [{"function": function, "dtypes": [dtype], "calls": 2}]
    assert found["verdict"] == ("unknown" if function == "matmul" else "proved")  # nothing else is left to be half


@pytest.mark.parametrize("scale", [NO_SCALE, PRESETS["paddle"]], ids=["unscaled", "scaled"])
def test_for_a_gpu_what_is_outside_of_the_guard_stays_in_float32_and_is_no_contradiction(supported, scale):
    """Nine layers, as published: the first one's ninth of the work is more than what is let pass elsewhere."""
    found, report = read(forced("o2", scale, dtype="float16"), layers=9, guarded=True)
    assert found["verdict"] == "proved", found["why"]
    assert "kept in float32 as asked: matmul in float32 (2 calls)" in found["why"]
    assert found["param_dtypes"] == {"float32": 8 * 8 + 8, "float16": 8 * (8 * 8 + 8)}
    assert set(report["optimizer"]) == {"float32"}


def test_a_static_graphs_loss_scale_moves_by_the_page_and_is_told():
    """Paddle's own scaler in the graph, on a CPU, where it leaves the rest in float32."""
    precision = forced("o1", dataclasses.replace(PRESETS["paddle"], growth_every=3), dtype="float16")
    graph, rule = static_graph(precision), PaddleRule(2.0**15, 2.0, 0.5, growth_every=3, backoff_every=2)
    labels = numpy.zeros((4, 8), numpy.float32)
    for bad in (False, True, True, True, False, False, False, True):
        before = precision.scale
        inputs = numpy.full((4, 8), numpy.inf if bad else 0.5, numpy.float32)
        _, outcome = graph.step(inputs, labels)
        assert (outcome.overflowed, outcome.loss_scale) == (bad, before)
        assert precision.scale == rule.iterate(bad)
    assert precision.skipped_total == 4


def test_a_static_graph_that_paddle_left_in_float32_is_contradicted():
    """Forced past the table on a CPU, where Paddle takes every operation off its list."""
    precision = forced("o1")
    graph = static_graph(precision)
    witness = GraphWitness(graph, precision)
    with witness.step(1):
        graph.step(numpy.ones((4, 8), numpy.float32), numpy.zeros((4, 8), numpy.float32))
    found = verdict.observed(witness.reports)
    assert (found["verdict"], "0.0% of forward ran in bfloat16" in found["why"]) == ("contradicted", True)
    work = {each["backward"]: 0 for each in witness.reports[0]["calls"]}
    for each in witness.reports[0]["calls"]:
        work[each["backward"]] += each["flops"]
    assert work == {False: 2 * 2 * 4 * 8 * 8, True: 3 * 2 * 4 * 8 * 8}


@pytest.fixture
def scaling(monkeypatch):
    """Paddle's scaler switches itself off on a CPU, by the place that it asks for; told of a GPU, it scales there."""
    place = types.SimpleNamespace(is_gpu_place=lambda: True)
    monkeypatch.setattr(grad_scaler, "_dygraph_tracer", lambda: types.SimpleNamespace(_expected_place=place))


BAD = (False, True, True, True, False, False, False, True)


class Scaled:
    """One weight that moves by 1 in every good step; gradients of a bad one are infinite."""

    def __init__(self, loss_scale: LossScale) -> None:
        self.precision = forced("o1", loss_scale, dtype="float16")
        self.net = nn.Linear(1, 1, bias_attr=False)
        self.net.weight.set_value(paddle.zeros([1, 1]))
        self.sgd = paddle.optimizer.SGD(1.0, parameters=self.net.parameters())
        self.take = self.by_loop

    def by_loop(self, value: float):
        _, optimizer = self.precision.decorate(self.net, self.sgd)
        self.precision.backward(-self.net(paddle.full([1, 1], value)).sum())
        outcome = self.precision.step(optimizer)
        self.precision.update()
        optimizer.clear_grad()
        return outcome

    def by_model(self) -> None:
        model = paddle.Model(self.net)
        self.precision.prepare(model, self.sgd, lambda found, label: -found.sum())
        ones = numpy.ones((1, 1), numpy.float32)
        self.take = lambda value: self.precision.train_batch(model, value * ones, ones)[1]


@pytest.mark.parametrize("api", ["loop", "model"])
def test_the_loss_scale_moves_by_the_page_in_a_loop_and_in_paddles_model(scaling, api):
    """Backing off at the second bad step in a row, each of which is skipped: with Paddle's own scaler."""
    scaled = Scaled(dataclasses.replace(PRESETS["paddle"], growth_every=3))
    if api == "model":
        scaled.by_model()
    rule = PaddleRule(2.0**15, 2.0, 0.5, growth_every=3, backoff_every=2)
    for bad in BAD:
        before = scaled.precision.scale
        outcome = scaled.take(numpy.inf if bad else 1.0)
        assert (outcome.overflowed, outcome.loss_scale) == (bad, before)
        assert scaled.precision.scale == rule.iterate(bad)
    assert scaled.net.weight.item() == BAD.count(False)
    assert scaled.precision.skipped_total == BAD.count(True)


def test_a_saved_scale_goes_on_as_one_that_was_not_saved(scaling):
    settings = dataclasses.replace(PRESETS["paddle"], growth_every=3)
    whole, first, second = Scaled(settings), Scaled(settings), Scaled(settings)
    scales = []
    for at, bad in enumerate(BAD):
        if at == 3:
            saved = json.loads(json.dumps(first.precision.state_dict()))
            second.precision.load_state_dict(saved)
        parts = first if at < 3 else second
        for each in (whole, parts):
            each.take(numpy.inf if bad else 1.0)
        scales.append((whole.precision.scale, parts.precision.scale))
    assert all(one == other for one, other in scales)
    assert second.precision.skipped_total == whole.precision.skipped_total


def test_a_static_scale_never_moves_and_its_bad_steps_are_skipped(scaling):
    scaled = Scaled(PRESETS["static"])
    assert [scaled.take(numpy.inf if bad else 1.0).overflowed for bad in BAD] == list(BAD)
    assert scaled.precision.scale == 128.0
    assert scaled.net.weight.item() == BAD.count(False)


def test_paddles_model_scales_nothing_where_no_scale_was_asked_for(scaling):
    """Told nothing, it would make itself a dynamic scaler."""
    scaled = Scaled(NO_SCALE)
    scaled.by_model()
    assert scaled.take(1.0).loss_scale is None
    assert scaled.precision.scale is None
    assert scaled.net.weight.item() == 1.0


def test_what_paddles_model_steps_is_seen():
    precision = o0()
    net, stepped = nn.Linear(4, 2), []
    model = paddle.Model(net)
    precision.prepare(model, paddle.optimizer.SGD(0.1, parameters=net.parameters()), nn.MSELoss())
    precision.on_step.append(stepped.append)
    precision.train_batch(model, numpy.ones((3, 4), numpy.float32), numpy.ones((3, 2), numpy.float32))
    assert stepped == [{"float32": 4 * 2 + 2}]


def test_what_the_lists_name_is_seen_of_the_model_and_not_of_the_loop_beside_it():
    _, report = train(forced("o1", allow=("elementwise_add",), deny=("relu", "tanh")))
    assert report["listed"] == [
        {"function": "add", "dtypes": ["float32"], "calls": 2},
        {"function": "relu", "dtypes": ["float32"], "calls": 1},
    ]
    assert report["unseen"] == []


def test_the_operations_that_paddle_lacks_are_those_of_this_paddle():
    registered = {*core._get_registered_phi_kernels(), *core._get_all_register_op_kernels(), *dir(paddle._C_ops)}
    lacking = {name for name in operations.TORCH if not registered & set(operations.in_paddle((name,)))}
    assert lacking == operations.PADDLE_LACKS


@pytest.mark.parametrize(
    ("amp", "scale", "said"),
    [
        (Amp(level="o1"), PRESETS["apex"], r"loss_scale\.max: Paddle's scaler has no bounds"),
        (Amp(level="o1", deny=("mse_loss",)), NO_SCALE, r"amp\.deny: Paddle has no operation mse_loss"),
        (Amp(level="o1", keep_fp32=("head",)), NO_SCALE, r"amp\.keep_fp32=\[head\] with amp=o1: in Paddle only o2"),
    ],
)
def test_what_paddle_has_no_way_of_doing_is_refused_before_it_is_there(amp, scale, said):
    with pytest.raises(SettingsError, match=said):
        check(amp, scale, "paddle")


@pytest.mark.parametrize(("level", "masters"), [("o2", True), ("o3", False)])
def test_model_and_optimizer_are_decorated_together_with_or_without_masters(monkeypatch, level, masters):
    """Without its optimizer, as the page's own example has it, a model at o2 has no master weights."""
    asked = {}
    net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    monkeypatch.setattr(paddle.amp, "decorate", lambda **words: asked.update(words) or (net, optimizer))
    precision = forced(level, **({"keep_fp32": ("0",)} if level == "o2" else {}))
    assert isinstance(precision, Decorated)
    precision.decorate(net, optimizer)
    assert (asked["models"], asked["optimizers"], asked["master_weight"]) == (net, optimizer, masters)
    assert asked["level"] == "O2"
    assert asked["excluded_layers"] == ([net[0], net[1]] if level == "o2" else None)


def test_a_pattern_that_names_no_layer_is_refused():
    with pytest.raises(SettingsError, match="head names no layer of 0"):
        net = nn.Sequential(nn.Linear(2, 2))
        forced("o2", keep_fp32=("head",)).decorate(net, paddle.optimizer.SGD(0.1, parameters=net.parameters()))


def test_a_script_gets_what_the_launcher_was_asked_for(tmp_path):
    def environ(**settings):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"schema": 1, "settings": {**plain(Settings(framework="paddle")), **settings}}))
        return {"LAUNCHER_SPEC": str(path)}

    assert Precision.from_env(environ(amp={"level": "o0"})).mechanism == "float32"
    with pytest.raises(SettingsError, match="Paddle applies no mixed precision on a CPU"):
        Precision.from_env(environ(amp={"level": "o1"}, device="cpu"))
