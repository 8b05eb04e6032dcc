"""Whether oneDNN has kernels in bfloat16 for this CPU, which Paddle's static graphs and torch's LSTM need."""

from __future__ import annotations

from pathlib import Path

import pytest

HAS_BFLOAT16 = "avx512f" in Path("/proc/cpuinfo").read_text().split()
bfloat16_needed = pytest.mark.skipif(
    not HAS_BFLOAT16, reason="oneDNN's kernels in bfloat16 need AVX-512; without it Paddle and torch fail by themselves"
)
