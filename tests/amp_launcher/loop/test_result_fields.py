"""The mode of a run in words."""

from __future__ import annotations

import dataclasses

import pytest

from amp_launcher.loop.result_fields import mode_lines
from amp_launcher.precision.levels import MODES, PRESETS, Amp
from amp_launcher.precision.resolved import resolve
from amp_launcher.settings import Settings

O3_FLOAT16 = Amp(level="o3", dtype="float16")
FP8 = Amp(level="o2", dtype="bfloat16", gemm=MODES["fp8"].gemm)
NO_GRADIENTS = "no loss scale (loss_scale=auto, there are no float32 gradients to unscale into)"
NEEDS_NONE = "no loss scale (loss_scale=auto, bfloat16 needs none)"


@pytest.mark.parametrize(
    ("amp", "scale", "capability", "line"),
    [
        (Amp(level="o0"), "auto", None, "amp=o0: float32, no loss scale (loss_scale=auto, float32 needs none)"),
        (Amp(level="o1"), "auto", None, f"amp=o1: bfloat16 by autocast (amp.dtype=auto, on a CPU), {NEEDS_NONE}"),
        (
            Amp(level="o1"),
            "auto",
            (7, 0),
            "amp=o1: float16 by autocast (amp.dtype=auto, compute capability 7.0), dynamic loss scale from 65536 "
            "(loss_scale=auto, float16)",
        ),
        (Amp(level="o1"), "static", (7, 0), "compute capability 7.0), static loss scale from 128"),
        (Amp(level="o1"), "none", (7, 0), "compute capability 7.0), no loss scale"),
        (O3_FLOAT16, "auto", (8, 0), f"amp=o3: float16 by half_model, {NO_GRADIENTS}"),
        (
            FP8,
            "auto",
            (9, 0),
            "amp=o2: bfloat16 by half_model_fp32_masters, linear layers in fp8-tensorwise by torchao, " + NEEDS_NONE,
        ),
    ],
)
def test_the_mode_is_told_with_the_reason_for_each_auto(amp, scale, capability, line):
    device = "cpu" if capability is None else "cuda"
    facts = {"framework": "torch", "device": device, "capability": capability, "environ": {}}
    settings = Settings(amp=amp, loss_scale=PRESETS[scale])
    first, *others = mode_lines(settings, resolve(amp, PRESETS[scale], **facts))
    assert first == line if line.startswith("amp") else first.endswith(line)
    assert len(others) == (device == "cuda")


@pytest.mark.parametrize(
    ("tf32", "words"), [(True, "in TF32"), (False, "in IEEE float32"), (None, "by the script's own TF32 switches")]
)
def test_a_gpu_is_told_with_how_it_multiplies_float32(tf32, words):
    facts = {"framework": "torch", "device": "cuda", "capability": None, "environ": {}}
    mode = dataclasses.replace(resolve(Amp(), PRESETS["auto"], **facts), tf32=tf32)
    lines = mode_lines(Settings(amp=Amp()), mode)
    assert "(amp.dtype=auto, compute capability unknown)" in lines[0]
    assert lines[1] == f"float32 products {words}"
