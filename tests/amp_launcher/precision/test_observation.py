"""The head that every framework's report begins with."""

from __future__ import annotations

from typing import Any

import pytest

from amp_launcher.precision import observation, verdict
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve

O1 = Amp(level="o1")


def head(amp: Amp = O1, **other: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"framework": "torch", "device": "cpu", "capability": None, "environ": {}}
    return observation.head(3, resolve(amp, LossScale(), **facts), parameters=[], **other)


def test_a_head_alone_proves_nothing() -> None:
    judged, why = verdict.judge([{**head(), "problems": ["this framework has no eyes"]}])
    assert judged == "unknown"
    assert "step 3: this framework has no eyes" in why


@pytest.mark.parametrize(
    ("amp", "masters"),
    [
        (Amp(level="o1"), False),
        (Amp(level="o2"), True),
        (Amp(level="o2", master_weights=False), False),
        (Amp(level="o3"), False),
    ],
)
def test_masters_are_expected_at_o2_alone_unless_they_were_declined(amp: Amp, masters: bool) -> None:
    assert head(amp)["rule"]["masters"] is masters


def test_only_a_framework_whose_parameters_are_all_float32_puts_that_into_the_rule() -> None:
    assert "float32_parameters" not in head()["rule"]
    assert head(float32_parameters=True)["rule"]["float32_parameters"] is True


def test_the_rule_has_the_layers_of_amp_gemm() -> None:
    amp = Amp(level="o2", dtype="bfloat16", gemm="fp8-tensorwise")
    assert "gemm" not in head(Amp(level="o2"))["rule"]
    assert head(amp, gemm_layers=Chosen(("up", "down"), {"head": "the output layer"}))["rule"]["gemm"] == {
        "format": "fp8-tensorwise",
        "layers": ["up", "down"],
        "left_out": {"head": "the output layer"},
    }
