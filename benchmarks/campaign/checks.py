"""Checks that need a GPU: its kernels at every level in both half precisions, its loss scaler, its float32."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.recipes.mnist import train_torch as mnist
from amp_launcher.recipes.simplenet import train_torch as simplenet
from amp_launcher.torch import loop
from amp_launcher.torch.observe import float32_probe
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.precision.tf32 import switch_tf32
from benchmarks.campaign.recipes import capture, data_of, quietly, step_of
from benchmarks.campaign.rows import Bench, Row, Task

PART, TRAINED = "check", "training"
MODES = [("o0", "auto"), *((level, dtype) for level in ("o1", "o2", "o3") for dtype in ("float16", "bfloat16"))]
REHEARSED = (("o2", "float16"),)
HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")
"""From torch 2.10 a gradient may have another dtype than its weight."""


def bytes_of_parameter(grad_dtype: bool) -> dict[str, float]:
    """Bytes for a parameter of simplenet at the end of backward, by level: its weight and its gradient; at o1, of the
    last of nine layers, both in half precision too; at o2 the master, and a copy of the gradient in float32 where
    torch has no `grad_dtype`: with it plain SGD takes gradients as they are."""
    return {"o0": 4 + 4, "o1": 4 + 4 + (2 + 2) / 9, "o2": 2 + 2 + 4 + (0 if grad_dtype else 4), "o3": 2 + 2}


TOLERANCE = 0.02
"""Relative gap between the losses of o0 and of o1 and o2 after 40 steps of a small net; on a CPU they agree to this."""


PUBLISHED = 0.6486
"""The loss of simplenet in float32 after its 20 steps, by Paddle's guide to automatic mixed precision."""
SCATTER = 0.06
"""Its relative spread by random weights: each of nine layers scales by 1 +- sqrt(2 / 8192), twice over."""


def tasks() -> list[Task]:
    return [
        Task(part=PART, name="float32 is what was asked for", run=_float32, estimate=3),
        *(
            Task(
                part=PART,
                name=f"trainer at {level} {dtype}" if level != "o0" else "trainer at o0",
                run=lambda bench, mode=(level, dtype): [_trainer(bench, *mode)],
                estimate=8,
                rehearsed=(level, dtype) in REHEARSED,
            )
            for level, dtype in MODES
        ),
        Task(part=PART, name="losses agree", run=_losses, estimate=5),
        Task(part=PART, name="overflow", run=_overflow, estimate=3),
        Task(part=PART, name="memory", run=_memory, estimate=10),
    ]


def row(name: str, passed: bool, **more: Any) -> Row:
    return Row(part=PART, name=name, passed=passed, more=more)


def trained_row(name: str, passed: bool, **more: Any) -> Row:
    """Of whole trainings, which the first day on a GPU leaves to --thorough."""
    return Row(part=TRAINED, name=name, passed=passed, more=more)


def _float32(bench: Bench) -> list[Row]:
    """By arithmetic: never TF32 where it is off; where it is on, matrix products use it, and convolutions may."""
    switch_tf32(False)
    arithmetic = float32_probe.arithmetic(bench.device)
    rows = [row("float32 products are IEEE's", set(arithmetic.values()) == {"float32"}, **arithmetic)]
    if bench.device.type == "cuda":
        switch_tf32(True)
        arithmetic = float32_probe.arithmetic(bench.device)
        switch_tf32(False)
        right = arithmetic["matmul"] == arithmetic["bmm"] == "tf32" and arithmetic["convolution"] in ("tf32", "float32")
        rows.append(row("float32 products are TF32 where it is on", right, **arithmetic))
    return rows


def _trainer(bench: Bench, level: str, dtype: str) -> Row:
    """A whole run of the real trainer has to be done, and proved on its device."""
    size = ("batch=2", "steps=2") if bench.tiny else ("batch=512", "steps=40")
    code, output, result = trained(bench, mnist, f"amp={level}", f"amp.dtype={dtype}", *size)
    observed, throughput = result.get("observed") or {}, result.get("throughput") or {}
    return row(
        f"trainer at {level} {dtype}" if level != "o0" else "trainer at o0",
        code == 0 and observed.get("verdict") == "proved",
        exit_code=code,
        verdict=observed.get("verdict"),
        why=observed.get("why") or output[-300:],
        loss=result.get("loss"),
        loss_scale=result.get("loss_scale"),
        peak_memory_bytes=result.get("peak_memory_bytes"),
        samples_per_second=throughput.get("median"),
        gpu_busy_share=throughput.get("gpu_busy_share"),
    )


def published() -> Task:
    """Whether simplenet at full size ends at the published loss."""
    return Task(part=TRAINED, name="simplenet ends at its published loss", run=_published, estimate=45)


def _published(bench: Bench) -> list[Row]:
    """A rehearsal is too small for that: it only has to end."""
    size = ("train.width=64", "batch=16") if bench.tiny else ()
    code, output, result = trained(bench, simplenet, "amp=o0", "tf32=false", *size)
    last = (result.get("loss") or {}).get("last")
    near = code == 0 and (bench.tiny or abs(last / PUBLISHED - 1) < SCATTER)
    said = output[-300:]
    return [trained_row("simplenet ends at its published loss", near, loss=last, published=PUBLISHED, said=said)]


def trained(bench: Bench, recipe: Any, *words: str) -> tuple[int, str, dict[str, Any]]:
    """A whole run of the real trainer: its exit code, its output and its result."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        name = recipe.__name__.split(".")[-2]
        job = [*words, *data_of(name), f"device={bench.device.type}", "checkpoint.every=0", f"run={folder}/run"]
        code, output = quietly(lambda: loop.main(name, recipe.train, job))
        path = Path(folder, "run", "result.json")
        return code, output, json.loads(path.read_text()) if path.exists() else {}


def _losses(bench: Bench) -> list[Row]:
    """o1 and o2 end at the loss of o0; o3 lags where updates are small, which o2's masters prevent."""
    rows = []
    reference = _small_net(bench, "o0", "auto", 0.1)
    for dtype in ("float16", "bfloat16"):
        losses = {level: _small_net(bench, level, dtype, 0.1) for level in ("o1", "o2")}
        gaps = {level: abs(loss - reference) / reference for level, loss in losses.items()}
        rows.append(row(f"losses agree, {dtype}", max(gaps.values()) < TOLERANCE, o0=reference, **losses, gaps=gaps))
    slow = {
        level: _small_net(bench, level, "bfloat16" if level != "o0" else "auto", 1e-4) for level in ("o0", "o2", "o3")
    }
    kept, lost = abs(slow["o2"] - slow["o0"]), abs(slow["o3"] - slow["o0"])
    rows.append(row("o2 keeps the small updates that o3 loses", kept < lost, **slow))
    return rows


def _small_net(bench: Bench, level: str, dtype: str, rate: float) -> float:
    """The float32 loss of a small net after 40 steps of SGD."""
    precision = Precision(Amp(level=level, dtype=dtype), device=bench.device)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 32, generator=random).to(bench.device)
    targets = torch.randn(64, 8, generator=random).to(bench.device)
    torch.manual_seed(0)
    net = precision.prepare(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(bench.device))
    optimizer = precision.prepare(torch.optim.SGD(net.parameters(), lr=rate))
    loss = torch.zeros(())
    for _ in range(40):
        optimizer.zero_grad()
        with precision:
            loss = nn.functional.mse_loss(net(inputs).float(), targets)
        precision.backward(loss)
        precision.step(optimizer)
    return float(loss.detach())


def _overflow(bench: Bench) -> list[Row]:
    """An infinite gradient skips the step, halves the scale and leaves the weights; the next step is applied."""
    rows = []
    for level in ("o1", "o2"):
        scale = LossScale(mode="dynamic", init=2.0**10)
        precision = Precision(Amp(level=level, dtype="float16"), loss_scale=scale, device=bench.device)  # type: ignore[arg-type]
        net = precision.prepare(nn.Linear(8, 8).to(bench.device))
        optimizer = precision.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
        before = net.weight.detach().clone()
        outcomes, weights = [], []
        for factor in (math.inf, 1.0):
            optimizer.zero_grad()
            with precision:
                loss = net(torch.ones(4, 8, device=bench.device)).float().sum() * factor
            precision.backward(loss)
            outcomes.append(precision.step(optimizer).applied)
            weights.append(net.weight.detach().clone())
        kept, moved = torch.equal(before, weights[0]), not torch.equal(before, weights[1])
        right = outcomes == [False, True] and kept and moved and precision.scale == 2.0**9
        rows.append(row(f"an overflow at {level} is skipped", right, applied=outcomes, scale=precision.scale))
    return rows


def _memory(bench: Bench) -> list[Row]:
    """Peak memory is that of the level's copies of weights and gradients. A rehearsal only runs the step.

    The batch is small, so that little else takes memory.
    """
    rows = []
    width, layers = (64 if bench.tiny else 8192), 9
    for level, expected in bytes_of_parameter(HAS_GRAD_DTYPE).items():
        bench.forget()
        before = torch.cuda.memory_allocated(bench.device) if bench.device.type == "cuda" else 0
        words = (f"amp={level}", "batch=64", f"train.width={width}", f"train.layers={layers}")
        step = step_of(capture(bench, "simplenet", words))
        step()
        bench.forget()
        step()
        peak = bench.peak_memory()
        bytes_each = None if peak is None else (peak - before) / (layers * width**2)
        near = bytes_each is None or abs(bytes_each / expected - 1) < 0.15
        rows.append(row(f"memory at {level}", near, bytes_each=bytes_each, expected=expected))
        del step
    return rows
