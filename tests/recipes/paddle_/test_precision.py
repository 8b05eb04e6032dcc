"""Precision in Paddle as far as a CPU shows it: what is asked of Paddle, and that nothing is taken for applied."""

from __future__ import annotations

import json
import warnings

import numpy
import paddle
import pytest
from paddle import nn

from recipes import verdict
from recipes.levels import PRESETS, Amp, LossScale
from recipes.paddle_.observe import Witness
from recipes.paddle_.precision import MECHANISMS, AutoCast, Decorated, Precision
from recipes.paddle_.static_graph import GraphWitness, StaticGraph
from recipes.settings import Settings
from recipes.typed import SettingsError, plain

NO_SCALE = LossScale(mode="none")


def forced(level: str, **amp) -> Precision:
    """The mechanism of a level on a CPU, past the table that refuses it."""
    mechanism = {"o1": "auto_cast", "o2": "decorate_auto_cast", "o3": "decorate_no_masters"}[level]
    return MECHANISMS[mechanism](
        amp=Amp(level=level, **amp), loss_scale=NO_SCALE, dtype="bfloat16", mechanism=mechanism, device="cpu"
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
    forced(level, **lists).static(None, guarded=True)
    assert (asked["level"], asked["dtype"]) == ("O1" if level == "o1" else "O2", "bfloat16")
    assert (asked["master_weight"], asked["use_amp_guard"]) == (masters, True)
    assert (asked["init_loss_scaling"], asked["use_dynamic_loss_scaling"]) == (1.0, False)
    if lists:
        assert {"add", "elementwise_add"} <= asked["amp_lists"].white_list
        assert "softmax" in asked["amp_lists"].black_list


def test_a_static_graph_that_paddle_left_in_float32_is_contradicted():
    """Forced past the table on a CPU, where Paddle takes every operation off its list."""
    precision = forced("o1")
    graph = StaticGraph(
        make=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        make_optimizer=lambda net: paddle.optimizer.SGD(0.1, parameters=net.parameters()),
        precision=precision,
        shape=(4, 8),
        guarded=False,
        kind="cpu",
        seed=0,
    )
    witness = GraphWitness(graph, precision)
    with witness.step(1):
        graph.step(numpy.ones((4, 8), numpy.float32), numpy.zeros((4, 8), numpy.float32))
    found = verdict.observed(witness.reports)
    assert (found["verdict"], "0.0% of forward ran in bfloat16" in found["why"]) == ("contradicted", True)
    work = {each["backward"]: 0 for each in witness.reports[0]["calls"]}
    for each in witness.reports[0]["calls"]:
        work[each["backward"]] += each["flops"]
    assert work == {False: 2 * 2 * 4 * 8 * 8, True: 3 * 2 * 4 * 8 * 8}


def test_bounds_of_the_scale_are_refused_as_paddles_scaler_has_none():
    with pytest.raises(SettingsError, match=r"loss_scale\.max: Paddle's scaler has no bounds"):
        AutoCast(amp=Amp(level="o1"), loss_scale=PRESETS["apex"], dtype="float16", mechanism="auto_cast", device="cpu")


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
