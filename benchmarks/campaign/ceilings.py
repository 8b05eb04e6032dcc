"""The measured peak rates of the device: the reference for all other rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from amp_launcher.recipes.simplenet import RECIPE as SIMPLENET
from amp_launcher.recipes.simplenet import SimplenetSettings
from amp_launcher.torch.precision.tf32 import switch_tf32
from benchmarks.campaign.rows import Bench, Row, Task, median

PART = "ceiling"
SQUARE = (8192, 8192, 8192)
REPEATED = 5000
"""The maximum of repetitions: as long as recipes are measured, since a GPU that is hot or at its power limit slows
down."""


def tasks() -> list[Task]:
    """Copy bandwidth, the rate of matrix products in each arithmetic, and that of an update of o2's weights."""
    batch, width = SIMPLENET.batch, SimplenetSettings().width
    products = [
        ("bfloat16 products", torch.bfloat16, False, SQUARE),
        ("float16 products", torch.float16, False, SQUARE),
        ("TF32 products", torch.float32, True, SQUARE),
        ("IEEE float32 products", torch.float32, False, SQUARE),
        ("bfloat16 products, simplenet's layer", torch.bfloat16, False, (batch, width, width)),
        ("bfloat16 products, simplenet's gradient", torch.bfloat16, False, (width, batch, width)),
    ]
    return [
        Task(part=PART, name="copy bandwidth", run=_copy, estimate=5),
        *(
            Task(part=PART, name=product[0], run=lambda bench, product=product: [_product(bench, *product)])
            for product in products
        ),
        Task(part=PART, name="updates", run=_updates, estimate=15),
    ]


def _copy(bench: Bench) -> list[Row]:
    """Bytes read and written in a second by a copy on the device that is too large for its caches."""
    count = 2**20 if bench.tiny else 2**31
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = median(bench.time(lambda: target.copy_(source), most=REPEATED))
    return [Row(part=PART, name="copy bandwidth", value=2 * count / seconds / 1e12, unit="TB/s")]


def _product(bench: Bench, name: str, dtype: torch.dtype, tf32: bool, sizes: tuple[int, int, int]) -> Row:
    """Of random numbers: a GPU multiplies zeros faster."""
    switch_tf32(tf32)
    rows, inner, columns = (128, 128, 128) if bench.tiny else sizes
    left = torch.randn(rows, inner, device=bench.device).to(dtype)
    right = torch.randn(inner, columns, device=bench.device).to(dtype)
    product = torch.empty(rows, columns, dtype=dtype, device=bench.device)
    seconds = median(bench.time(lambda: torch.mm(left, right, out=product), warm_up=20, most=REPEATED))
    rate = 2 * rows * inner * columns / seconds / 1e12
    return Row(part=PART, name=name, value=rate, unit="TFLOP/s", more={"size": [rows, inner, columns]})


def _updates(bench: Bench) -> list[Row]:
    """Bytes read and written in a second by each part of an update of o2's weights, over lists and one by one."""
    side, layers = (64, 2) if bench.tiny else (SimplenetSettings().width, SimplenetSettings().layers)
    masters = [torch.randn(side, side, device=bench.device) for _ in range(layers)]
    buffers = [torch.randn(side, side, device=bench.device) for _ in range(layers)]
    halves = [master.bfloat16() for master in masters]
    rate = 1e-6
    count = layers * side**2

    def one_by_one(
        act: Callable[[torch.Tensor, torch.Tensor], object], *lists: list[torch.Tensor]
    ) -> Callable[[], None]:
        def run() -> None:
            for tensors in zip(*lists, strict=True):
                act(*tensors)

        return run

    acts: dict[str, tuple[int, Callable[[], object]]] = {
        "bfloat16 to float32, as a list": (6, lambda: torch._foreach_copy_(buffers, halves)),
        "bfloat16 to float32, one by one": (6, one_by_one(torch.Tensor.copy_, buffers, halves)),
        "float32 to bfloat16, as a list": (6, lambda: torch._foreach_copy_(halves, masters)),
        "float32 to bfloat16, one by one": (6, one_by_one(torch.Tensor.copy_, halves, masters)),
        "SGD of float32, as a list": (12, lambda: torch._foreach_add_(masters, buffers, alpha=-rate)),
        "SGD of float32, one by one": (12, one_by_one(lambda to, by: to.add_(by, alpha=-rate), masters, buffers)),
        "SGD by bfloat16, one by one": (10, one_by_one(lambda to, by: to.add_(by, alpha=-rate), masters, halves)),
    }
    rows = []
    for name, (bytes_each, act) in acts.items():
        seconds = median(bench.time(act))
        rows.append(Row(part=PART, name=name, value=bytes_each * count / seconds / 1e12, unit="TB/s"))
    return rows
