"""The support matrix."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import pytest

from amp_launcher.precision.gemm import FORMATS
from amp_launcher.precision.levels import LEVELS, Framework
from amp_launcher.precision.support import gemm_problem, sharding_problem, support_for
from tests import golden


def test_golden_matrix() -> None:
    """Every framework, level, dtype, device and XLA."""
    lines = []
    for framework, level, device, xla in itertools.product(get_args(Framework), LEVELS, ("cpu", "cuda"), (False, True)):
        for dtype in ("float32",) if level == "o0" else ("float16", "bfloat16"):
            cell = support_for(framework, level, dtype, xla, device)
            words = f"{framework} {level} {dtype} {device}{' xla' if xla else ''}"
            lines.append(f"{words}: {cell.mechanism or f'nothing: {cell.unsupported}'}\n")
    golden.assert_text(Path(__file__).parents[1] / "golden" / "support.txt", "".join(lines))


@pytest.mark.parametrize(
    ("words", "more", "mechanism"),
    [
        (("torch", "o2", "bfloat16", False, "cpu"), {"parallel": "fsdp"}, "sharded_fp32_masters"),
        (("torch", "o2", "bfloat16", False, "cpu"), {"parallel": "ddp"}, "half_model_fp32_masters"),
        (("torch", "o2", "bfloat16", False, "cpu"), {"master_weights": False}, "half_model_no_masters"),
        (("paddle", "o2", "bfloat16", False, "cuda"), {"master_weights": False}, "decorate_no_masters"),
        (("paddle", "o1", "bfloat16", False, "cpu"), {"static": True}, "static_bf16"),
        (("paddle", "o2", "bfloat16", False, "cpu"), {"static": True, "master_weights": False}, "static_pure_bf16"),
        (("paddle", "o3", "bfloat16", False, "cpu"), {"static": True}, "static_pure_bf16"),
    ],
)  # fmt: skip
def test_what_changes_a_mechanism(words, more, mechanism):
    assert support_for(*words, **more).mechanism == mechanism


@pytest.mark.parametrize(
    ("words", "more", "why"),
    [
        (("tensorflow", "o1", "float16", False, "cuda"), {"parallel": "ddp"}, "parallel=ddp is torch's"),
        (("paddle", "o1", "float16", False, "cpu"), {"static": True}, "bfloat16 alone; say amp.dtype=bfloat16"),
        (("paddle", "o2", "bfloat16", False, "cpu"), {"static": True}, "say amp.master_weights=false, or amp=o1"),
    ],
)  # fmt: skip
def test_a_hole_says_why(words, more, why):
    found = support_for(*words, **more)
    assert (found.mechanism, why in found.unsupported) == ("", True), found


def test_a_format_has_kernels_from_its_first_device_on_to_the_one_below_its_end():
    for name, format in FORMATS.items():
        assert gemm_problem(name, "cuda", None) == gemm_problem(name, "cuda", format.capability) == ""
        assert "needs compute capability" in gemm_problem(name, "cuda", (format.capability[0] - 1, 9))
        assert ("no kernels for a CPU" in gemm_problem(name, "cpu", None)) is (format.cpu == "no")
        if format.below:
            assert "and above, and this GPU" in gemm_problem(name, "cuda", format.below)
    assert gemm_problem("nvfp4", "cuda", (8, 9)).endswith("say amp=fp8")
    assert gemm_problem("nvfp4", "cuda", (8, 8)).endswith("say amp=o1 or amp=o2")
    assert (sharding_problem("2.9.0"), sharding_problem("2.10")) == ("", "")
    assert sharding_problem("2.8.1").startswith("parallel=fsdp needs torch 2.9 or newer, and this is 2.8.1")
