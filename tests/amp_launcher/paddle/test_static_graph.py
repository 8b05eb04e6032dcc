"""Static graphs: Paddle's rewrite for a CPU as it runs, that for a GPU as it reads, and its loss scale."""

from __future__ import annotations

import dataclasses

import numpy
import paddle
import pytest
from paddle.base import core

from amp_launcher.paddle.observe.graph_observer import GraphObserver
from amp_launcher.paddle.precision.base import Mechanism, dtype_name
from amp_launcher.paddle.precision.mechanisms import mechanism_of
from amp_launcher.paddle.static_graph import StaticGraph, decorate
from amp_launcher.precision import verdict
from amp_launcher.precision.levels import PRESETS, Amp
from amp_launcher.precision.resolved import resolve
from amp_launcher.recipes.simplenet import SimplenetSettings
from amp_launcher.recipes.simplenet.train_paddle import Net
from amp_launcher.typed import SettingsError
from tests.amp_launcher.loss_scale_rules import PaddleRule
from tests.amp_launcher.paddle.forced import NO_SCALE, forced_mechanism
from tests.onednn import bfloat16_needed


def plain_sgd(net):
    return paddle.optimizer.SGD(0.1, parameters=net.parameters())


def static_graph(precision: Mechanism, layers: int = 2, guarded: bool = False, make_optimizer=plain_sgd) -> StaticGraph:
    return StaticGraph(
        make=lambda: Net(SimplenetSettings(width=8, layers=layers)),
        make_optimizer=make_optimizer,
        precision=precision,
        shape=(4, 8),
        guarded=guarded,
        kind="cpu",
        seed=0,
    )


def of_cpu(**amp) -> Mechanism:
    asked = Amp(**amp)
    return mechanism_of(
        resolve(asked, NO_SCALE, framework="paddle", device="cpu", capability=None, environ={}, static=True)
    )


@bfloat16_needed
@pytest.mark.parametrize(
    ("amp", "how", "share", "stored"),
    [
        ({"level": "o1"}, {}, 1.0, {"float32": 9 * 72}),
        ({"level": "o1", "allow": ("elementwise_add",)}, {"layers": 1}, 1.0, {"float32": 72}),
        ({"level": "o2", "master_weights": False}, {}, 1.0, {"bfloat16": 9 * 72}),
        ({"level": "o3"}, {"layers": 1}, 1.0, {"bfloat16": 72}),
        ({"level": "o3"}, {"guarded": True}, 0.888889, {"float32": 72, "bfloat16": 8 * 72}),
    ],
    ids=str,
)
def test_on_a_cpu_a_static_graph_trains_in_bfloat16_and_that_is_proved(amp, how, share, stored):
    precision = of_cpu(**amp)
    graph = static_graph(precision, **{"layers": 9, **how})
    observer, samples = GraphObserver(graph, precision.resolved), numpy.eye(4, 8, dtype=numpy.float32)
    losses = []
    for number in range(3):
        with observer.step(number):
            losses.append(graph.step(samples, samples)[0])
    observed = verdict.observed(observer.reports)
    assert observed["verdict"] == "proved", observed["why"]
    assert (observed["half_flop_share"], observed["param_dtypes"]) == (share, stored)
    assert losses[2] < losses[1] < losses[0]


def test_a_cpu_without_kernels_in_bfloat16_is_refused_before_a_step(monkeypatch):
    monkeypatch.setattr(core, "supports_bfloat16", lambda: False)
    with pytest.raises(
        SettingsError, match=r"amp=o1: Paddle multiplies in bfloat16 on CPUs with AVX-512 .* say amp=o0"
    ):
        static_graph(of_cpu(level="o1"))


@bfloat16_needed
def test_on_a_cpu_paddle_leaves_masters_as_they_are_which_is_why_they_are_refused():
    with pytest.raises(SettingsError, match="on a CPU Paddle steps no float32 masters"):
        of_cpu(level="o2")
    graph = static_graph(
        of_cpu(level="o3"),
        make_optimizer=lambda net: paddle.optimizer.SGD(0.1, parameters=net.parameters(), multi_precision=True),
    )
    samples = numpy.eye(4, 8, dtype=numpy.float32)
    before = graph.arrays()
    graph.step(samples, samples)
    moved = {name for name, values in graph.arrays().items() if not numpy.array_equal(values, before[name])}
    assert moved == {"linear_0.w_0", "linear_0.b_0", "linear_1.w_0", "linear_1.b_0"}
    assert {name for name in before if "master" in name} == {f"{name}_fp32_master_0" for name in moved}


@pytest.fixture
def supported(monkeypatch):
    """Paddle asks which operations a GPU can do in half precision: here it is told, those that a CPU can in float32.

    So its rewrite is real, and what it made of a program can be read. Nothing can be run of it.
    """
    real = core.op_supported_infos
    monkeypatch.setattr(
        core, "op_supported_infos", lambda place, dtype: real("CPU", core.VarDesc.VarType.FP32), raising=True
    )


def read(precision: Mechanism, **how):
    """What is judged of a program as Paddle rewrote it, and the report."""
    observer = GraphObserver(static_graph(precision, **how), precision.resolved)
    with observer.step(1):
        pass
    return verdict.observed(observer.reports), observer.reports[0]


@pytest.mark.parametrize(("level", "masters"), [("o1", None), ("o2", True), ("o3", False)])
def test_a_static_graph_is_decorated_with_lists_guard_and_masters(monkeypatch, level, masters):
    asked = {}
    monkeypatch.setattr(paddle.static.amp, "decorate", lambda optimizer, **words: asked.update(words))
    lists = {"allow": ("elementwise_add",), "deny": ("softmax",)} if level != "o3" else {}
    decorate(forced_mechanism(level, **lists), None)
    assert (asked["level"], asked["dtype"]) == ("O1" if level == "o1" else "O2", "bfloat16")
    assert (asked["master_weight"], asked["use_amp_guard"]) == (masters, level != "o1")
    assert (asked["init_loss_scaling"], asked["use_dynamic_loss_scaling"]) == (1.0, False)
    if lists:
        assert {"add", "elementwise_add"} <= asked["amp_lists"].white_list
        assert "softmax" in asked["amp_lists"].black_list


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_for_a_gpu_the_static_rewrite_makes_of_a_program_what_the_level_means(supported, level, dtype):
    observed, report = read(forced_mechanism(level, dtype=dtype))
    assert (observed["verdict"], observed["dtype"], observed["half_flop_share"]) == ("proved", dtype, 1.0)
    assert set(observed["param_dtypes"]) == {"float32" if level == "o1" else dtype}
    assert set(report["optimizer"]) == {dtype if level == "o3" else "float32"}


@pytest.mark.parametrize("level", ["o2", "o3"])
def test_for_a_gpu_the_static_rewrite_leaves_the_loss_in_float32(supported, level):
    graph = static_graph(forced_mechanism(level, dtype="float16"))
    block = graph.program.global_block()
    (squared,) = (operation for operation in block.ops if operation.type == "square")
    assert dtype_name(block.var(squared.input("X")[0]).dtype) == "float32"


@pytest.mark.parametrize(
    ("amp", "function", "dtype"),
    [
        ({"allow": ("elementwise_add",)}, "add", "float16"),
        ({"deny": ("elementwise_add",)}, "add", "float32"),
        ({"deny": ("matmul_v2",)}, "matmul", "float32"),
    ],
)
def test_for_a_gpu_the_static_rewrite_follows_custom_lists_and_that_is_seen(supported, amp, function, dtype):
    observed, report = read(forced_mechanism("o1", dtype="float16", **amp))
    assert report["listed"] == [{"function": function, "dtypes": [dtype], "calls": 2}]
    assert observed["verdict"] == ("unknown" if function == "matmul" else "proved")  # nothing else is left to be half


@pytest.mark.parametrize("scale", [NO_SCALE, PRESETS["paddle"]], ids=["unscaled", "scaled"])
def test_for_a_gpu_what_is_outside_of_the_guard_stays_in_float32_and_is_no_contradiction(supported, scale):
    """Nine layers, as published: the first one's ninth of the work is more than what is let pass elsewhere."""
    observed, report = read(forced_mechanism("o2", scale, dtype="float16"), layers=9, guarded=True)
    assert observed["verdict"] == "proved", observed["why"]
    assert "kept in float32 as requested: matmul in float32 (2 calls)" in observed["why"]
    assert observed["param_dtypes"] == {"float32": 8 * 8 + 8, "float16": 8 * (8 * 8 + 8)}
    assert set(report["optimizer"]) == {"float32"}


def test_a_static_graphs_loss_scale_moves_by_the_page_and_is_told():
    """Paddle's own scaler in the graph, on a CPU, where it leaves the rest in float32."""
    precision = forced_mechanism("o1", dataclasses.replace(PRESETS["paddle"], growth_every=3), dtype="float16")
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
    precision = forced_mechanism("o1")
    graph = static_graph(precision)
    observer = GraphObserver(graph, precision.resolved)
    with observer.step(1):
        graph.step(numpy.ones((4, 8), numpy.float32), numpy.zeros((4, 8), numpy.float32))
    observed = verdict.observed(observer.reports)
    assert observed["verdict"] == "contradicted"
    assert "0.0% of forward and 0.0% of backward ran in bfloat16" in observed["why"]
    calls = observer.reports[0]["calls"]
    forward, backward = (sum(call["flops"] for call in calls if call["backward"] is back) for back in (False, True))
    assert (forward, backward) == (2 * 2 * 4 * 8 * 8, 3 * 2 * 4 * 8 * 8)
