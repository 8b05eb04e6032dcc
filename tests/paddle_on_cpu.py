"""Whether Paddle multiplies in bfloat16 on this CPU, without importing Paddle."""

from __future__ import annotations

from pathlib import Path

import pytest

HAS_BFLOAT16 = "avx512f" in Path("/proc/cpuinfo").read_text().split()
bfloat16_needed = pytest.mark.skipif(
    not HAS_BFLOAT16, reason="Paddle multiplies in bfloat16 on CPUs with AVX-512 alone"
)
