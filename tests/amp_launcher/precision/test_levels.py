"""Levels, modes and presets: the requests that any device can carry out, or that advice names."""

from __future__ import annotations

import pytest

from amp_launcher.precision.checks import check_precision
from amp_launcher.precision.levels import LEVELS, MODES, NO_CLAIM, PRESETS, Amp, LossScale, amp_named
from amp_launcher.typed import SettingsError


def test_every_level_and_preset_is_legal_by_itself():
    for level in LEVELS:
        check_precision(Amp(level=level), LossScale())
    for preset in PRESETS.values():
        check_precision(Amp(level="o1"), preset)
    check_precision(Amp(level="o1"), LossScale(per_optimizer=True))
    check_precision(Amp(level="o1"), LossScale(mode="static", init=8.0, min=8.0, max=8.0))
    check_precision(Amp(level="o1", deny=("Conv2D",)), LossScale(), "tensorflow")
    check_precision(Amp(level="o2"), PRESETS["dynamic"])
    check_precision(Amp(level="o2", dtype="float16", master_weights=False), PRESETS["dynamic"], "paddle")


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
    with pytest.raises(SettingsError, match=f"with amp={preset}") as refused:
        check_precision(Amp(**{**named, key: value}, preset=preset), LossScale())
    advised = dict(word.split("=") for word in str(refused.value).partition("; say ")[2].split())
    level = advised.pop("amp")
    assert level == "o0" or advised.get("amp.dtype") == {**named, key: value}["dtype"]
    check_precision(Amp(level=level, **{name.removeprefix("amp."): advised[name] for name in advised}), LossScale())


def test_a_name_is_a_level_or_a_mode_that_says_what_tf32_is():
    assert amp_named("o1", None) == (Amp(level="o1"), None)
    assert amp_named("o1", True) == (Amp(level="o1"), True)
    for tf32 in (None, MODES["tf32"].tf32):
        assert amp_named("tf32", tf32) == (Amp(level="o0", preset="tf32"), True)
    assert amp_named("fp32", None) == (Amp(level="o0", preset="fp32"), False)
    assert amp_named("bf16-mixed", False)[1] is False
    assert [amp_named(name, None)[0].asked for name in ("o2", "fp8")] == ["o2", "fp8"]
    for name in ("bf16", NO_CLAIM):
        with pytest.raises(SettingsError, match=f"precision={name} is not one of o0, o1, o2, o3, fp32, .*, nvfp4"):
            amp_named(name, None)
    with pytest.raises(SettingsError, match="tf32=False with tf32, which says otherwise"):
        amp_named("tf32", False)


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
