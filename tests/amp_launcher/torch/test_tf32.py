"""Which float32 the matrix units use."""

from __future__ import annotations

import warnings

import pytest
import torch

from amp_launcher.precision.resolved import resolve_tf32
from amp_launcher.torch.precision.tf32 import has_new_switches, switch_tf32
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import of


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


def old():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def switches():
    """The old switches, put back afterwards."""
    before = old()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


BEFORE = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "all ieee": lambda: setattr(torch.backends, "fp32_precision", "ieee"),
    "cudnn": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "matmul": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}
"""What a script may have set."""


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("on", [True, False])
def test_both_kinds_of_switches_can_be_read_after_they_were_set(switches, on, before):
    if before not in ("nothing", "high", "medium") and not has_new_switches():
        pytest.skip("came with torch 2.9")
    BEFORE[before]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switch_tf32(on)
    of("o0")  # cuDNN has it on by default
    assert old() == (False, False)
    switch_tf32(on)
    assert old() == (on, on)
    assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    with torch.backends.cudnn.flags(enabled=True):
        pass
    if has_new_switches():
        assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if on else "ieee")
        assert (torch.backends.cudnn.conv.fp32_precision == "tf32") is on
