"""Requests that no device could carry out, and the presets, which one can."""

from __future__ import annotations

import math
import re

import pytest

from recipes.precision.checks import check
from recipes.precision.levels import LEVELS, MODES, PRESETS, Amp, LossScale
from recipes.typed import SettingsError


def refusal(amp: Amp, scale: LossScale = PRESETS["auto"], framework: str = "torch") -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        check(amp, scale, framework)
    return caught.value


@pytest.mark.parametrize(
    ("amp", "message"),
    [
        (Amp(level="o0", dtype="float16"), "amp.dtype=float16 with amp=o0"),
        (Amp(level="o0", deny=("conv2d",)), "amp.deny=[conv2d] with amp=o0"),
        (Amp(level="o0", keep_fp32=("head",)), "amp.keep_fp32=[head] with amp=o0"),
        (Amp(level="o0", clear=("relu",)), "amp.clear=[relu] with amp=o0"),
        (Amp(level="o3", allow=("softmax",)), "amp=o3 has none"),
        (Amp(level="o1", master_weights=True), "amp.master_weights=true with amp=o1"),
        (Amp(level="o1", allow=("softmax",), deny=("softmax",)), "softmax is on both"),
        (
            Amp(level="o1", allow=("elementwise_add",), deny=("add",)),
            "add is on both amp.allow and amp.deny (as elementwise_add and add)",
        ),
        (Amp(level="o1", infer=("relu",)), "amp.infer=[relu] is a list of TensorFlow's graph rewrite"),
        (Amp(level="o1", deny=("con2d",)), "amp.deny: con2d is not an operation known here; did you mean conv2d"),
    ],
)
def test_an_impossible_precision_is_refused(amp, message):
    assert message in str(refusal(amp))


@pytest.mark.parametrize(
    ("level", "dtype", "framework", "message"),
    [
        ("o0", "auto", "torch", "those of amp=o0 are float32; say amp=o3"),
        ("o1", "auto", "torch", "those of amp=o1 are float32; say amp=o3"),
        ("o2", "auto", "torch", "takes the place of the float32 masters of amp=o2"),
        ("o3", "float16", "torch", "needs bfloat16, whose range is that of float32; say amp.dtype=bfloat16"),
        ("o3", "auto", "tensorflow", "is for torch, and this is framework=tensorflow"),
        ("o3", "auto", "paddle", "is for torch, and this is framework=paddle"),
    ],
)
def test_stochastic_rounding_is_for_o3_in_bfloat16_in_torch(level, dtype, framework, message):
    error = refusal(Amp(level=level, dtype=dtype, rounding="stochastic"), framework=framework)
    assert re.match("amp.rounding=stochastic .*" + re.escape(message), str(error))
    assert error.key == "amp.rounding"
    check(Amp(level="o3", rounding="stochastic"), LossScale())
    check(Amp(level="o3", dtype="bfloat16", rounding="stochastic", preset="bf16-true"), LossScale())


def test_every_level_and_preset_is_legal_by_itself():
    for level in LEVELS:
        check(Amp(level=level), LossScale())
    for preset in PRESETS.values():
        check(Amp(level="o1"), preset)


@pytest.mark.parametrize("preset", ["fp8", "bf16-mixed", "fp16-true"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("level", level) for level in ("o0", "o2", "o3")),
        ("dtype", "float16"),
        *(("gemm", gemm) for gemm in ("half", "fp8-rowwise")),
    ],
)
def test_the_advice_for_a_contradicted_preset_is_legal(preset, key, value):
    named = {name: getattr(MODES[preset], name) for name in ("level", "dtype", "gemm")}
    if named[key] == value:
        return
    message = str(refusal(Amp(**{**named, key: value}, preset=preset)))
    assert f"with amp={preset}" in message
    advised = dict(word.split("=") for word in message.partition("; say ")[2].split())
    level = advised.pop("amp")
    check(Amp(level=level, **{name.removeprefix("amp."): advised[name] for name in advised}), LossScale())


def test_tensorflow_has_operation_names_of_its_own():
    check(Amp(level="o1", deny=("Conv2D",)), LossScale(), "tensorflow")
    both = Amp(level="o1", allow=("MatMul",), deny=("MatMul",))
    assert "MatMul is on both" in str(refusal(both, framework="tensorflow"))


@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("amp", [Amp(level="o0"), Amp(level="o3"), Amp(level="o2", master_weights=False)])
def test_a_loss_scale_without_float32_gradients_to_unscale_into_is_refused(mode, amp):
    message = str(refusal(amp, LossScale(mode=mode)))
    assert message.startswith(f"loss_scale.mode={mode} with amp={amp.level}: ")
    assert message.endswith("say loss_scale=none")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *(("init", {"init": value}) for value in (0.0, math.inf, math.nan)),
        *(("growth", {"growth": value}) for value in (1.0, math.inf)),
        *(("backoff", {"backoff": value}) for value in (1.0, 0.0)),
        ("growth_every", {"growth_every": 0}),
        ("backoff_every", {"backoff_every": 0}),
        ("min", {"min": -1.0}),
        ("max", {"max": math.nan}),
        ("init", {"init": 4.0, "min": 8.0}),
        ("init", {"init": 4.0, "max": 2.0}),
    ],
)
def test_a_number_that_no_loss_scale_can_have_is_refused(key, values):
    error = refusal(Amp(level="o1"), LossScale(**values))
    assert error.key == f"loss_scale.{key}"
    assert f"loss_scale.{key}=" in str(error)


@pytest.mark.parametrize(
    ("framework", "mode", "message"),
    [
        ("paddle", "auto", "Paddle's scaler is one for all optimizers"),
        ("torch", "none", "there is no scale; leave it out"),
        ("tensorflow", "none", "there is no scale; leave it out"),
    ],
)
def test_a_scale_for_each_optimizer_is_refused_where_there_can_be_none(framework, mode, message):
    assert message in str(refusal(Amp(level="o1"), LossScale(mode=mode, per_optimizer=True), framework))
    check(Amp(level="o1"), LossScale(per_optimizer=True), "torch")


# init, growth, growth_every, backoff, backoff_every, min, max: from each framework's own documentation.
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("dynamic", (2**16, 2, 2000, 0.5, 1, None, None)),
        ("apex", (2**16, 2, 2000, 0.5, 1, None, 2**24)),
        ("tf", (2**15, 2, 2000, 0.5, 1, 1, None)),
        ("keras", (2**15, 2, 2000, 0.5, 1, None, None)),
        ("paddle", (2**15, 2, 1000, 0.5, 2, None, None)),
    ],
)
def test_presets_are_what_their_frameworks_document(name, numbers):
    keys = ("init", "growth", "growth_every", "backoff", "backoff_every", "min", "max")
    assert PRESETS[name] == LossScale(mode="dynamic", **dict(zip(keys, numbers, strict=True)))
