"""The mode of a run in words, and what result.json has from its plan and its rate."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from amp_launcher.loop.result_fields import digests, mode_lines, throughput
from amp_launcher.loop.utilization import TokenWork
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


@pytest.mark.parametrize(
    ("container", "image"),
    [({}, None), ({"image": "a:1"}, "a:1"), ({"image": "a:1", "identity": "sha256:b"}, "sha256:b")],
)
def test_an_image_is_told_by_its_digest_else_by_its_name(container, image):
    assert digests({"code": "c", "container": container}, "d") == {"code": "c", "image": image, "data": "d"}


@pytest.mark.parametrize(("tf32", "peak"), [(True, 156e12), (False, 19.5e12)])
def test_a_rate_has_the_shares_of_the_peak_that_can_be_known(tf32, peak):
    summary = SimpleNamespace(throughput=lambda: {"mean": 1e6, "unit": "samples/s"}, step_seconds=1.0)
    facts = {"framework": "torch", "device": "cuda", "capability": (8, 0), "environ": {}}
    mode = dataclasses.replace(resolve(Amp(level="o0"), PRESETS["auto"], **facts), tf32=tf32)
    gpu = "NVIDIA A100-SXM4-40GB"
    assert throughput(summary, None, None, mode, gpu, 1) == summary.throughput()
    assert throughput(summary, 195 * 10**10, None, mode, gpu, 1)["matrix_share"] == pytest.approx(0.1)
    text = throughput(summary, None, TokenWork(per_sample=8, flops=10**6), mode, gpu, 2)
    assert (text["unit"], text["mfu"]) == ("tokens/s", pytest.approx(1e12 / (2 * peak)))
