"""One request, one framework, one device: one resolved precision."""

from __future__ import annotations

import pytest

from amp_launcher.precision.levels import PRESETS, Amp, LossScale
from amp_launcher.precision.resolved import resolve, resolve_dtype, resolve_scale, resolve_tf32
from amp_launcher.precision.support import Support
from amp_launcher.typed import SettingsError


def resolved(amp: Amp, scale: LossScale = PRESETS["auto"], **facts):
    facts = {"framework": "torch", "device": "cuda", "capability": (8, 0), "environ": {}, **facts}
    return resolve(amp, scale, **facts)


def test_every_auto_is_decided_by_the_device():
    ampere = resolved(Amp(level="o2"))
    volta = resolved(Amp(level="o2"), capability=(7, 0))
    assert (ampere.dtype, ampere.loss_scale.mode, ampere.tf32) == ("bfloat16", "none", True)
    assert (volta.dtype, volta.loss_scale.mode, volta.tf32) == ("float16", "dynamic", False)
    assert ampere.mechanism == volta.mechanism == "half_model_fp32_masters"
    assert ampere.master_weights
    without = resolved(Amp(level="o2", master_weights=False))
    assert (without.master_weights, without.mechanism) == (False, "half_model_no_masters")
    assert [resolved(Amp(), parallel=parallel).parallel for parallel in (None, "fsdp")] == ["ddp", "fsdp"]


@pytest.mark.parametrize(
    ("level", "dtype", "device", "capability", "framework", "expected"),
    [
        ("o0", "auto", "cpu", None, "torch", "float32"),
        ("o0", "auto", "cuda", (6, 1), "torch", "float32"),
        ("o1", "auto", "cpu", None, "torch", "bfloat16"),
        ("o1", "float16", "cpu", None, "torch", "float16"),
        ("o1", "auto", "cuda", (7, 0), "torch", "float16"),
        ("o1", "auto", "cuda", (7, 5), "torch", "float16"),
        ("o1", "auto", "cuda", (8, 0), "torch", "bfloat16"),
        ("o1", "bfloat16", "cuda", (8, 0), "torch", "bfloat16"),
        ("o1", "bfloat16", "cuda", None, "torch", "bfloat16"),
        ("o2", "float16", "cuda", (9, 0), "torch", "float16"),
        ("o1", "auto", "cuda", (8, 0), "tensorflow", "float16"),
        ("o2", "auto", "cuda", (8, 0), "tensorflow", "bfloat16"),
        ("o1", "auto", "cpu", None, "tensorflow", "bfloat16"),
    ],
)
def test_an_auto_dtype_is_decided_by_the_device(level, dtype, device, capability, framework, expected):
    assert resolve_dtype(level, dtype, device, capability, framework) == expected


@pytest.mark.parametrize(
    ("level", "dtype", "masters", "expected"),
    [
        ("o0", "float32", None, "none"),
        ("o1", "float16", None, "dynamic"),
        ("o1", "bfloat16", None, "none"),
        ("o2", "float16", None, "dynamic"),
        ("o2", "float16", True, "dynamic"),
        ("o2", "float16", False, "none"),
        ("o2", "bfloat16", None, "none"),
        ("o3", "float16", None, "none"),
    ],
)
def test_an_auto_loss_scale_is_dynamic_where_float16_has_float32_gradients_and_a_named_one_stays(
    level, dtype, masters, expected
):
    assert resolve_scale(LossScale(), level, dtype, masters).mode == expected
    for mode in ("dynamic", "static", "none"):
        assert resolve_scale(LossScale(mode=mode), level, dtype, masters).mode == mode


def test_operation_lists_are_in_the_names_of_the_framework():
    assert resolved(Amp(level="o1", deny=("elementwise_add",))).deny == ("add",)
    lists = resolved(Amp(level="o1", deny=("Conv2D",)), framework="tensorflow").deny
    assert lists == ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


def test_what_auto_became_is_checked_too():
    asked = {"framework": "paddle", "scale": LossScale(mode="dynamic")}
    with pytest.raises(SettingsError, match="Paddle's scaler switches itself off for bfloat16"):
        resolved(Amp(level="o1"), **asked)
    assert resolved(Amp(level="o1"), **asked, capability=(7, 0)).dtype == "float16"
    with pytest.raises(SettingsError, match="to static graphs alone"):  # which no other loss scale would change
        resolved(Amp(level="o1"), **asked, device="cpu", capability=None)
    assert resolved(Amp(level="o1"), **asked, capability=None)  # a GPU that nothing is known of may be either


@pytest.mark.parametrize(
    ("amp", "facts", "message"),
    [
        (Amp(level="o3", allow=("softmax",)), {}, "amp=o3 has none"),
        (Amp(level="o1"), {"capability": (6, 1)}, r"needs compute capability 7\.0.*has 6\.1; say amp=o0$"),
        (Amp(level="o1", dtype="float16"), {"capability": (6, 1)}, r"has 6\.1; say amp=o0$"),
        (Amp(level="o1", dtype="bfloat16"), {"capability": (3, 5)}, r"has 3\.5; say amp=o0$"),
        (Amp(level="o1", dtype="bfloat16"), {"capability": (7, 5)}, r"capability 8\.0.*7\.5; say amp.dtype=float16$"),
        (Amp(level="o1"), {"framework": "paddle", "device": "cpu", "capability": None}, "to static graphs alone"),
        (Amp(level="o1"), {"tf32": True, "environ": {"NVIDIA_TF32_OVERRIDE": "0"}}, "NVIDIA_TF32_OVERRIDE=0"),
        (Amp(level="o1"), {"support": lambda dtype: Support(unsupported=f"no {dtype} here")}, "no bfloat16 here"),
    ],
)
def test_what_cannot_be_had_is_refused(amp, facts, message):
    with pytest.raises(SettingsError, match=message):
        resolved(amp, **facts)


@pytest.mark.parametrize(
    ("tf32", "level", "capability", "environ", "expected"),
    [
        (None, "o1", None, {}, False),
        (False, "o1", None, {}, False),
        (None, "o0", (8, 0), {}, False),
        (None, "o1", (8, 0), {}, True),
        (None, "o2", (9, 0), {}, True),
        (True, "o0", (8, 0), {}, True),
        (False, "o1", (8, 0), {}, False),
        (None, "o1", (7, 5), {}, False),
        (None, "o1", (8, 0), {"NVIDIA_TF32_OVERRIDE": "0"}, False),
        (False, "o1", (7, 0), {}, False),
    ],
)
def test_tf32_is_off_at_o0_and_on_elsewhere_where_the_gpu_has_it(tf32, level, capability, environ, expected):
    device = "cpu" if capability is None else "cuda"
    assert resolve_tf32(tf32, level, device, capability, environ) is expected


@pytest.mark.parametrize(
    ("device", "capability", "environ", "why"),
    [
        ("cpu", None, {}, "a CPU has no TF32"),
        ("cuda", (7, 0), {}, r"needs compute capability 8\.0, and this GPU has 7\.0"),
        ("cuda", (8, 0), {"NVIDIA_TF32_OVERRIDE": "0"}, "NVIDIA_TF32_OVERRIDE=0 in the environment"),
    ],
)
def test_tf32_asked_for_where_it_cannot_be_had_is_an_error(device, capability, environ, why):
    with pytest.raises(SettingsError, match=f"tf32=true: .*{why}"):
        resolve_tf32(True, "o1", device, capability, environ)
