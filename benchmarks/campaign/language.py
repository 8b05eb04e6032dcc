"""gpt on a GPU: its levels, and matrix products in eight bits, checked and then timed, with the published gains."""

from __future__ import annotations

from typing import Any

import torch

from amp_launcher.precision.gemm import FORMATS, ROLES
from amp_launcher.precision.support import gemm_problem
from amp_launcher.recipes.gpt import train_torch as gpt
from amp_launcher.torch.precision import float8
from amp_launcher.torch.spec import capability_of
from benchmarks.campaign import recipes, turns
from benchmarks.campaign.checks import TOLERANCE, TRAINED, row, trained, trained_row
from benchmarks.campaign.recipes import capture, step_of
from benchmarks.campaign.rows import Bench, Row, Task

PART = "gpt"
SMALL = ("train.layers=4", "train.width=256", "train.heads=4", "train.context=256", "batch=16", "steps=100")
"""Settings of the checks, which train."""
GEMMS = ("fp8-tensorwise", "fp8-rowwise")
PUBLISHED = {
    "fp8-tensorwise": "published: 1.25 (Llama3-8B, 8 H100, torchao's training docs), 1.28 (Llama3.1-8B, 8 H100 of "
    "500 W, torchtitan 2024-12), 1.29 (the same, 128 H100, torchtitan), 1.25 (Llama3-8B, 8 B200, torchao's docs)",
    "fp8-rowwise": "published: 1.10 (Llama3-8B, 8 H100, torchao's training docs), 1.04 (the same, 8 B200)",
}
"""Tokens/s over those of bfloat16, all with torch.compile; by number format."""
GEMM_TOLERANCE = 0.05
"""Relative gap between the losses of float32 and of fp8 after a small net's training."""


def o2(gemm: str) -> tuple[str, ...]:
    """The words of o2 in bfloat16 with this number format."""
    return "amp=o2", "amp.dtype=bfloat16", *((f"amp.gemm={gemm}",) if gemm != "half" else ())


def checks() -> list[Task]:
    return [
        Task(part="check", name="fp8 products", run=_products, estimate=3),
        Task(part=TRAINED, name="gpt", run=_losses, estimate=60),
    ]


def tasks() -> list[Task]:
    """Eager; what is compiled is in `compiled`."""
    return [
        recipes.task(PART, "o0 tf32", "amp=o0", "tf32=true", estimate=25, rehearsed=False),
        recipes.task(PART, "o1", "amp=o1", "amp.dtype=bfloat16", estimate=25),
        recipes.task(PART, "o2", *o2("half"), estimate=25),
        *(_where_supported(gemm, _timed(gemm)) for gemm in GEMMS),
    ]


def _timed(gemm: str) -> Task:
    return recipes.task(PART, gemm, *o2(gemm), estimate=25, rehearsed=gemm == GEMMS[0])


def compiled() -> list[Task]:
    """bfloat16 against eight bits in alternation, both compiled, as for the published gains."""
    return [
        _where_supported(
            gemm,
            Task(
                part=PART,
                name=gain(gemm),
                run=lambda bench, gemm=gemm: [_gain(bench, gemm)],
                estimate=150,
                rehearsed=False,
            ),
        )
        for gemm in GEMMS
    ]


def gain(gemm: str) -> str:
    """The name of a number format's row."""
    return f"o2 / {gemm}, compiled"


def _gain(bench: Bench, gemm: str) -> Row:
    half, eight = (
        step_of(capture(bench, PART, (*o2(number_format), "compile=true"))) for number_format in ("half", gemm)
    )
    return turns.row(bench, gain(gemm), half, eight, part=PART, published_gains=PUBLISHED[gemm])


def _where_supported(gemm: str, task: Task) -> Task:
    """The task, left out with the reason on a device without such products."""

    def run(bench: Bench) -> list[Row]:
        if reason := unsupported(bench, gemm):
            return [Row(part=task.part, name=task.name, left_out=f"not on this device: {reason}")]
        return task.run(bench)

    return Task(part=task.part, name=task.name, run=run, estimate=task.estimate, rehearsed=task.rehearsed)


def unsupported(bench: Bench, gemm: str) -> str:
    problem = gemm_problem(gemm, bench.device.type, capability_of(bench.device))
    return problem or (float8.cpu_problem(gemm) if bench.device.type == "cpu" else "")


def _products(bench: Bench) -> list[Row]:
    """The device's products of eight-bit operands, compared with the same products in float64."""
    rows = []
    for gemm in GEMMS:
        if unsupported(bench, gemm):
            continue
        for role in ROLES[:2]:
            left, right = (getattr(torch, dtype) for dtype in FORMATS[gemm].operands(role))
            rows.append(_product(bench, gemm, role, left, right))
    return rows or [Row(part="check", name="fp8 products", left_out="not on this device: it has none")]


def _product(bench: Bench, gemm: str, role: str, left: torch.dtype, right: torch.dtype) -> Row:
    size = 64 if bench.tiny else 1024
    one = torch.randn(size, size, device=bench.device).to(left)
    other = torch.randn(size, size, device=bench.device).to(right)
    shapes = ((), ()) if gemm == "fp8-tensorwise" else ((size, 1), (1, size))
    scales = [torch.rand(shape, device=bench.device) + 0.5 for shape in shapes]
    product = torch._scaled_mm(one, other.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
    right_one = (one.double() * scales[0].double()) @ (other.double().t() * scales[1].double())
    error = float((product.double() - right_one).abs().max() / right_one.abs().max())
    return row(f"products of {gemm}, {role}", error < 2**-8, error=error, operands=[str(left), str(right)])


def _losses(bench: Bench) -> list[Row]:
    """Whole runs of the real trainer are done and proved, and o1, o2 and eight bits end at the loss of float32."""
    modes: dict[str, tuple[str, ...]] = {"o0": ("amp=o0",), "o1": ("amp=o1", "amp.dtype=bfloat16"), "o2": o2("half")}
    modes |= {gemm: o2(gemm) for gemm in GEMMS if not unsupported(bench, gemm)}
    rows, reference = [], None
    for name, words in modes.items():
        sizes = (*recipes.TINY[PART], "steps=2") if bench.tiny else SMALL
        code, output, result = trained(bench, gpt, *words, *sizes)
        observed, last = result.get("observed") or {}, (result.get("loss") or {}).get("last")
        reference = last if name == "o0" else reference
        near = last is not None and reference is not None and _gap(last, reference) < _tolerance(name)
        more: dict[str, Any] = {"verdict": observed.get("verdict"), "why": observed.get("why") or output[-300:]}
        passed = code == 0 and observed.get("verdict") == "proved" and near
        more |= {"loss": result.get("loss"), "o0": reference, "exit_code": code}
        rows.append(trained_row(f"gpt at {name}", passed, **more))
    return rows


def _gap(loss: float, reference: float) -> float:
    return abs(loss - reference) / reference


def _tolerance(mode: str) -> float:
    return GEMM_TOLERANCE if mode in GEMMS else TOLERANCE
