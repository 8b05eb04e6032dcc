"""Which float32 the matrix units use."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from recipes.precision.resolved import resolve_tf32
from recipes.torch_.precision.tf32 import has_new_switches, switch_tf32
from recipes.typed import SettingsError
from tests.recipes.torch_.loops import of

NEW = pytest.mark.skipif(not has_new_switches(), reason="this torch has only the old switches")
OLD = pytest.mark.skipif(has_new_switches(), reason="this torch has the new switches")


@pytest.fixture
def switches():
    """The operation switches, put back afterwards."""
    owners = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [owner.fp32_precision for owner in owners]
    yield lambda: [owner.fp32_precision for owner in owners]
    for owner, precision in zip(owners, before, strict=True):
        owner.fp32_precision = precision


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


@NEW
def test_all_three_new_switches_are_set_and_the_old_ones_left_alone(switches):
    """The old setters warn, and reading an old switch raises once it disagrees with a new one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switch_tf32(True)
    assert switches() == ["tf32"] * 3
    of("o0")  # cuDNN has it on by default
    assert switches() == ["ieee"] * 3
    switch_tf32(True)
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        _ = torch.backends.cuda.matmul.allow_tf32


@NEW
def test_a_compiler_that_reads_the_old_switches_gets_the_old_ones_alone(switches, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1"))
    with contextlib.suppress(RuntimeError):
        switch_tf32(False)
    for on in (True, False):
        switch_tf32(on, compile=True)
        assert torch.backends.cuda.matmul.allow_tf32 is on


@OLD
@pytest.mark.parametrize("on", [True, False])
def test_older_torch_gets_its_own_switches(on):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        switch_tf32(on)
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (on, on)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
