"""What `Precision` promises in every framework."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace

import keras
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_launcher.precision.levels import PRESETS, Amp, LossScale
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, plain
from tests.amp_launcher.contract.frameworks import JOBS, paddle, public, scaling_on_a_cpu, torch
from tests.amp_launcher.loss_scale_rules import PaddleRule, TorchRule
from tests.amp_launcher.paddle.forced import forced

CALLS = {"prepare", "backward", "step", "state_dict", "load_state_dict", "scale", "skipped_total"}
FRAMEWORKS = tuple(JOBS)
SETTINGS = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
OVERFLOWS = st.lists(st.booleans(), min_size=1, max_size=25)
SCALES = {
    "keras": replace(PRESETS["keras"], growth_every=3),
    "slow backoff": replace(PRESETS["paddle"], growth_every=3),
    "slower backoff": LossScale(mode="dynamic", init=64.0, growth_every=2, backoff_every=3),
    "bounded": LossScale(mode="dynamic", init=8.0, growth_every=2, backoff_every=2, min=4.0, max=24.0),
    "largest": LossScale(mode="dynamic", init=2.0**126, growth_every=1),
    "static": LossScale(mode="static", init=128.0),
}
NOT_PADDLES = ("bounded", "largest")
jobs: dict = {}


@pytest.fixture
def make(monkeypatch):
    """A job with these settings, as if it were new. It is made once: TensorFlow traces a graph for each."""
    scaling_on_a_cpu(monkeypatch)

    def job_of(framework, scale, optimizers=1, copy=0):
        key = framework, scale, optimizers, copy
        if key not in jobs:
            job = JOBS[framework](scale, optimizers)
            jobs[key] = job, json.dumps(job.precision.state_dict())
        job, first = jobs[key]
        job.precision.load_state_dict(json.loads(first))
        job.reset()
        return job

    return job_of


def rule(scale):
    """The rule of the settings, written down apart from ours."""
    kinds = {"scale": scale.init, "growth": scale.growth, "backoff": scale.backoff, "growth_every": scale.growth_every}
    return TorchRule(**kinds) if scale.backoff_every == 1 else PaddleRule(**kinds, backoff_every=scale.backoff_every)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_has_the_methods_of_the_dialect_and_none_for_observation(framework):
    names = public(JOBS[framework].of(Amp(level="o0"), LossScale()))
    assert {*names} >= CALLS
    assert [name for name in names if "witness" in name or "observ" in name or "watch" in name] == []


@pytest.mark.parametrize(
    ("framework", "name"),
    [pair for pair in itertools.product(FRAMEWORKS, SCALES) if pair[0] != "paddle" or pair[1] not in NOT_PADDLES],
)
@given(overflows=OVERFLOWS)
@SETTINGS
def test_the_scale_moves_by_its_rule_and_bad_steps_are_skipped(make, framework, name, overflows):
    scale = SCALES[name]
    job, expected = make(framework, scale), rule(scale)
    for bad in overflows:
        before = job.precision.scale
        assert job.iterate(bad) == [(bad, before)]
        if scale.mode == "dynamic":
            expected.scale = min(max(expected.iterate(bad), scale.min or 0.0), scale.max or 2.0**127)
        assert job.precision.scale == expected.scale
    assert job.weights() == [overflows.count(False)]
    assert job.precision.skipped_total == overflows.count(True)


@given(overflows=OVERFLOWS)
@SETTINGS
def test_the_preset_keras_moves_the_scale_as_kerass_own_optimizer_does(make, overflows):
    job = make("tensorflow", SCALES["keras"])
    weight = keras.Variable(0.0)
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), dynamic_growth_steps=3)
    for bad in overflows:
        job.iterate(bad)
        own.apply([keras.ops.convert_to_tensor(float("inf") if bad else 0.0)], [weight])
        assert job.precision.scale == float(own.dynamic_scale.numpy())


@pytest.mark.parametrize(("preset", "last"), [("tf", 1.0), ("keras", 0.125)])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_tensorflow_1s_scale_has_a_floor_and_kerass_has_none(make, framework, preset, last):
    job = make(framework, PRESETS[preset])
    for _ in range(18):
        job.iterate(True)
    assert job.precision.scale == last


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=15))
@SETTINGS
def test_two_optimizers_share_a_scale_and_one_overflow_makes_the_iteration_bad(make, framework, pairs):
    scale = LossScale(mode="dynamic", init=64.0, growth_every=2, backoff_every=2)
    job, expected = make(framework, scale, optimizers=2), rule(scale)
    for pair in pairs:
        before = job.precision.scale
        assert job.iterate(*pair) == [(bad, before) for bad in pair]
        assert job.precision.scale == expected.iterate(any(pair))
    assert job.weights() == [sum(not pair[index] for pair in pairs) for index in range(2)]
    assert job.precision.skipped_total == sum(bad for pair in pairs for bad in pair)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_with_a_scale_for_each_optimizer_its_own_overflows_alone_move_it(make, framework):
    job = make(framework, LossScale(mode="dynamic", init=8.0, growth_every=2, per_optimizer=True), optimizers=2)
    assert job.iterate(True, False) == [(True, 8.0), (False, 8.0)]
    assert job.iterate(True, False) == [(True, 4.0), (False, 8.0)]
    assert job.iterate(False, False) == [(False, 2.0), (False, 16.0)]
    assert (job.precision.scale, job.precision.skipped_total) == (2.0, 2)
    state = job.precision.state_dict()
    other = make(framework, LossScale(mode="dynamic", init=8.0, growth_every=2), optimizers=2)
    for one, saved in ((other, state), (job, other.precision.state_dict())):
        with pytest.raises(SettingsError, match=r"loss_scale\.per_optimizer="):
            one.precision.load_state_dict(saved)
    again = make(framework, LossScale(mode="dynamic", init=8.0, growth_every=2, per_optimizer=True), 2, copy=1)
    again.precision.load_state_dict(json.loads(json.dumps(state)))
    assert again.iterate(False, False) == [(False, 2.0), (False, 16.0)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(overflows=OVERFLOWS, at=st.integers(0, 25))
@SETTINGS
def test_a_state_saved_anywhere_goes_on_as_if_it_had_not_been(make, framework, overflows, at):
    scale = LossScale(mode="dynamic", init=2.0**10, growth_every=3, backoff_every=2)
    uninterrupted, other = make(framework, scale), make(framework, scale, copy=1)
    expected = [(uninterrupted.iterate(bad), uninterrupted.precision.scale) for bad in overflows]
    end = uninterrupted.precision.state_dict()
    first = make(framework, scale)
    seen = [(first.iterate(bad), first.precision.scale) for bad in overflows[:at]]
    other.precision.load_state_dict(json.loads(json.dumps(first.precision.state_dict())))
    seen += [(other.iterate(bad), other.precision.scale) for bad in overflows[at:]]
    assert seen == expected
    assert other.precision.state_dict() == end


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize(
    ("saved", "now", "key"),
    [
        (LossScale(mode="dynamic"), LossScale(mode="dynamic", growth_every=5), "growth_every"),
        (LossScale(mode="dynamic"), LossScale(mode="dynamic", max=2.0**20), "max"),
        (LossScale(mode="dynamic", init=128.0), LossScale(mode="static", init=128.0), "mode"),
        (LossScale(mode="none"), LossScale(mode="dynamic"), "mode"),
        (LossScale(mode="dynamic"), LossScale(mode="none"), "mode"),
    ],
)
def test_a_scale_saved_under_other_settings_is_refused(framework, saved, now, key):
    one, other = (JOBS[framework].of(Amp(level="o2", dtype="float16"), scale) for scale in (saved, now))
    with pytest.raises(SettingsError) as caught:
        other.load_state_dict(one.state_dict())
    assert caught.value.key == f"loss_scale.{key}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_o0_scales_nothing_and_refuses_the_state_of_another_level_or_dtype(framework):
    precision = JOBS[framework].of(Amp(level="o0"), LossScale())
    assert (precision.level, precision.resolved.mechanism, precision.resolved.dtype) == ("o0", "float32", "float32")
    assert (precision.scale, precision.skipped_total, precision.resolved.tf32) == (None, 0, False)
    state = precision.state_dict()
    precision.load_state_dict(state)
    for key, other in (("level", "o2"), ("dtype", "bfloat16")):
        with pytest.raises(SettingsError, match=rf"amp\.{key}=.*, and the checkpoint was saved with {other}"):
            precision.load_state_dict({**state, key: other})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_device_than_a_cpu_and_a_gpu_is_refused(framework):
    with pytest.raises(SettingsError, match="is not one of cpu, cuda"):
        JOBS[framework].of(Amp(level="o0"), LossScale(), "meta")


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_absent_gpu_is_refused_at_every_level(framework, level):
    with pytest.raises(SettingsError, match="sees no CUDA GPU here"):
        JOBS[framework].of(Amp(level=level), LossScale(), "cuda")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_script_gets_the_launchers_request_and_no_other_frameworks(framework, tmp_path, monkeypatch):
    def environ(**changed):
        values = {**plain(Settings(framework=framework)), "amp": {"level": "o0"}, "device": "cpu", **changed}
        (tmp_path / "plan.json").write_text(json.dumps({"schema": 2, "settings": values}))
        return {"LAUNCHER_SPEC": str(tmp_path / "plan.json")}

    def from_env(values):
        monkeypatch.setattr(os, "environ", {**os.environ, **values})
        return JOBS[framework].of(Amp(level="o1"), LossScale())

    assert from_env(environ()).resolved.mechanism == "float32"
    half = environ(amp={"level": "o2", "dtype": "float16"})
    if framework == "paddle":
        with pytest.raises(SettingsError, match="on a CPU Paddle applies mixed precision to static graphs alone"):
            from_env(half)
    else:
        asked = from_env(half).resolved
        assert (asked.level, asked.dtype, asked.loss_scale.mode) == ("o2", "float16", "dynamic")
    with pytest.raises(SettingsError, match=f"framework=other.*, and this is {framework}'s precision|framework=other"):
        from_env(environ(framework="other"))


@pytest.mark.parametrize(
    ("framework", "model", "problem"),
    [
        (
            "torch",
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)),
            "haed names no module of Sequential (modules: 0)",
        ),
        ("tensorflow", lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="head")]), "mean head?"),
        ("paddle", lambda: paddle.nn.Sequential(paddle.nn.Linear(2, 2)), "haed matches no layer of 0"),
    ],
)
def test_a_pattern_of_keep_fp32_that_names_no_layer_is_refused(framework, model, problem):
    amp = Amp(level="o2", dtype="bfloat16", keep_fp32=("haed",))
    if framework == "paddle":
        precision, given = forced("o2", keep_fp32=("haed",)), model()
    else:
        precision = JOBS[framework].of(amp, LossScale())
        given = model if framework == "tensorflow" else model()
    with pytest.raises(SettingsError, match=re.escape(problem)):
        precision.prepare(given)
