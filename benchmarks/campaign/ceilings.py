"""What the device can do at best, measured: everything else is set beside these."""

from __future__ import annotations

import torch

from benchmarks.campaign.rows import Bench, Row, Task, median
from recipes.torch_.tf32 import switch_tf32

PART = "ceiling"


def tasks() -> list[Task]:
    """Copy bandwidth, and the rate of square matrix products in each arithmetic."""
    products = [
        ("bfloat16 products", torch.bfloat16, False),
        ("float16 products", torch.float16, False),
        ("TF32 products", torch.float32, True),
        ("IEEE float32 products", torch.float32, False),
    ]
    return [
        Task(part=PART, name="copy bandwidth", run=_copy, estimate=5),
        *(
            Task(part=PART, name=name, run=lambda bench, each=(name, dtype, tf32): [_product(bench, *each)], estimate=8)
            for name, dtype, tf32 in products
        ),
    ]


def _copy(bench: Bench) -> list[Row]:
    """Bytes read and written in a second by a copy on the device that is too large for its caches."""
    count = 2**20 if bench.tiny else 2**31
    source = torch.zeros(count, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = median(bench.time(lambda: target.copy_(source)))
    return [Row(part=PART, name="copy bandwidth", value=2 * count / seconds / 1e12, unit="TB/s")]


def _product(bench: Bench, name: str, dtype: torch.dtype, tf32: bool) -> Row:
    switch_tf32(tf32)
    size = 128 if bench.tiny else 8192
    left, right = (torch.randn(size, size, device=bench.device).to(dtype) for _ in range(2))
    found = torch.empty_like(left)
    seconds = median(bench.time(lambda: torch.mm(left, right, out=found), warm_up=20))
    return Row(part=PART, name=name, value=2 * size**3 / seconds / 1e12, unit="TFLOP/s", more={"size": size})
