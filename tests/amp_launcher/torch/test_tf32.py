"""Which float32 the matrix units use."""

from __future__ import annotations

import warnings

import pytest
import torch

from amp_launcher.torch.precision.tf32 import has_new_switches, switch_tf32
from tests.amp_launcher.torch.loops import of


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
