"""The probe tells float32 products from rounded ones, by nothing but their results."""

from __future__ import annotations

import pytest
import torch

from amp_launcher.precision.value_rules import EXACT_SWITCHES
from amp_launcher.torch.observe import float32_probe
from tests.amp_launcher.torch.loops import CPU


def tf32(values: torch.Tensor) -> torch.Tensor:
    """Rounded to TF32's 10 bits of mantissa, to the nearest."""
    return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    ("multiply", "rounding"),
    [
        (lambda left, right: left @ right, "float32"),
        (lambda left, right: tf32(left) @ tf32(right), "tf32"),
        (lambda left, right: left.bfloat16().float() @ right.bfloat16().float(), "bfloat16"),
        (lambda left, right: (left.bfloat16() @ right.bfloat16()).float(), "bfloat16"),
    ],
)
def test_rounding_is_judged_by_what_a_product_with_the_identity_loses(multiply, rounding) -> None:  # type: ignore[no-untyped-def]
    assert float32_probe.rounding(multiply, CPU) == rounding


def test_every_kind_of_product_is_probed_without_the_autocast_around() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float32_probe.arithmetic(CPU) == {"matmul": "float32", "bmm": "float32", "convolution": "float32"}


def test_the_convolution_is_a_matrix_product() -> None:
    left, right = torch.randn(2, 64, 64).double().unbind()
    torch.testing.assert_close(float32_probe._convolve(left, right), left @ right)


@pytest.mark.parametrize(("device", "part"), [("cpu", "float32_matmul mkldnn"), ("cuda", "cuda cudnn")])
def test_the_switches_are_those_of_the_device(device: str, part: str) -> None:
    switches = float32_probe.switches(torch.device(device))
    assert switches
    assert all(any(word in name for word in part.split()) for name in switches)
    if device == "cpu":
        assert set(switches.values()) <= set(EXACT_SWITCHES), "off by default"


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="came with torch 2.9")
def test_a_switch_for_all_backends_shows_in_those_of_each() -> None:
    mkldnn = torch.backends.mkldnn
    switches = [torch.backends, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches[1:]:
        switch.fp32_precision = "none"  # one that another test has set would hide the switch for all backends
    torch.backends.fp32_precision = "tf32"
    try:
        assert set(float32_probe.switches(CPU).values()) == {"tf32"}
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
