"""One request, one framework, one device: one resolved precision."""

from __future__ import annotations

import pytest

from recipes.precision.levels import PRESETS, Amp, LossScale
from recipes.precision.resolved import resolve
from recipes.precision.support import Support
from recipes.typed import SettingsError


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
    assert not resolved(Amp(level="o2", master_weights=False)).master_weights


def test_operation_lists_are_in_the_names_of_the_framework():
    assert resolved(Amp(level="o1", deny=("elementwise_add",))).deny == ("add",)
    lists = resolved(Amp(level="o1", deny=("Conv2D",)), framework="tensorflow").deny
    assert lists == ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


def test_what_auto_became_is_checked_too():
    asked = {"framework": "paddle", "scale": LossScale(mode="dynamic")}
    with pytest.raises(SettingsError, match="Paddle's scaler switches itself off for bfloat16"):
        resolved(Amp(level="o1"), **asked)
    assert resolved(Amp(level="o1"), **asked, capability=(7, 0)).dtype == "float16"
    assert resolved(Amp(level="o1"), **asked, capability=None)  # a GPU that nothing is known of may be either


@pytest.mark.parametrize(
    ("amp", "facts", "message"),
    [
        (Amp(level="o3", allow=("softmax",)), {}, "amp=o3 has none"),
        (Amp(level="o1"), {"capability": (6, 1)}, "needs compute capability 7.0"),
        (Amp(level="o1"), {"framework": "paddle", "device": "cpu", "capability": None}, "no mixed precision on a CPU"),
        (Amp(level="o1"), {"tf32": True, "environ": {"NVIDIA_TF32_OVERRIDE": "0"}}, "NVIDIA_TF32_OVERRIDE=0"),
        (Amp(level="o1"), {"support": lambda dtype: Support(unsupported=f"no {dtype} here")}, "no bfloat16 here"),
    ],
)
def test_what_cannot_be_had_is_refused(amp, facts, message):
    with pytest.raises(SettingsError, match=message):
        resolved(amp, **facts)
