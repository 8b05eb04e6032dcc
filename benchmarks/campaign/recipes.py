"""The steps of recipes, as the trainer runs them, timed without the rest of a run."""

from __future__ import annotations

import contextlib
import importlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from amp_launcher import arguments
from amp_launcher.precision import verdict
from amp_launcher.torch import devices
from amp_launcher.torch.loop import Run
from amp_launcher.torch.observe.observer import PrecisionObserver
from benchmarks.campaign.rows import Bench, Row, Task, median

TINY = {
    "simplenet": ("batch=16", "train.width=64"),
    "resnet50": ("batch=2", "train.image_size=32", "train.width=8", "train.classes=10", "train.stages=[1,1]"),
    "efficientnet": ("batch=2", "train.image_size=32", "train.stages=[1,1]"),
    "gan": ("batch=2", "train.channels=[8,8,4,2]"),
    "gpt": (
        "batch=4",
        "train.layers=1",
        "train.width=32",
        "train.heads=2",
        "train.context=32",
        "train.vocab_size=256",
        "train.held_out=4",
    ),
}
"""Settings of a rehearsal."""

FULL = {
    "gpt": (
        "batch=4",
        "train.layers=4",
        "train.width=4096",
        "train.heads=32",
        "train.context=2048",
        "train.vocab_size=32768",
        "train.tied=false",
    )
}
"""Sizes for a GPU. The layers are those of a model of eight billion weights, fewer of them: narrow ones gain nothing
from eight bits."""

Captured = tuple[Run, dict[str, Any]]


def task(recipe: str, name: str, *words: str, estimate: float = 12.0, rehearsed: bool = True) -> Task:
    """A row for the recipe with these words."""
    return Task(
        part=recipe,
        name=name,
        run=lambda bench: [_measure(bench, recipe, name, words)],
        estimate=estimate,
        rehearsed=rehearsed,
    )


def capture(bench: Bench, recipe: str, words: Sequence[str]) -> Captured:
    """The recipe set up by its trainer, and the arguments that it passes to `Run.fit`."""
    module = importlib.import_module(f"amp_launcher.recipes.{recipe}.train_torch")
    own = TINY[recipe] if bench.tiny else FULL.get(recipe, ())
    keys = {word.partition("=")[0] for word in own}
    asked = [word for word in words if word.partition("=")[0] not in keys]
    chosen = arguments.parse([*asked, *own, *data_of(recipe), f"device={bench.device.type}"], recipe, "torch")
    run = Run(chosen, devices.join(bench.device.type, None, {}), time.monotonic())
    captured: dict[str, Any] = {}
    run.fit = captured.update  # type: ignore[method-assign,assignment]
    if run.settings.compile:
        torch._dynamo.reset()  # what it learnt of another batch size would make this program a more general one
    with contextlib.ExitStack() as stack:
        if recipe == "simplenet":
            # Ten times as much data would only take time to make.
            stack.enter_context(mock.patch.object(module, "STEPS_PER_EPOCH", 1))
        stack.enter_context(torch.device(bench.device))  # weights are drawn where they will be
        module.train(run)
    if captured.get("schedule"):
        # Steps are repeated at the schedule's first rate: at its peak the loss may leave the finite numbers, and
        # products of those that aren't take less power, and so less time, than products that anyone wants.
        for group in (group for optimizer in captured["optimizers"] for group in optimizer.param_groups):
            group["lr"] = captured["schedule"](0)
    return run, captured


def data_of(recipe: str) -> list[str]:
    """The data set that needs no file: random, or for text the recipe's own."""
    return [] if recipe == "gpt" else ["data=synthetic"]


def step_of(captured: Captured) -> Callable[[], Any]:
    """The recipe's step, always on the same batch."""
    run, fit = captured
    settings = run.settings
    batch = torch.arange(settings.batch).view(settings.accumulate, -1) % fit["samples"]
    given = fit["load"](0, batch.numpy()) if fit.get("load") else batch.to(run.world.device)
    return lambda: fit["step"](given)


def _measure(bench: Bench, recipe: str, name: str, words: Sequence[str]) -> Row:
    captured = capture(bench, recipe, words)
    run, fit = captured
    step = step_of(captured)
    precision = run.precision
    observer = PrecisionObserver(fit["model"], precision.resolved, precision.gemm_layers)
    with observer.step(1):  # before anything is compiled, as in a run of the trainer
        first, _ = step()
    bench.forget()
    seconds = median(bench.time(step, warm_up=10 if run.settings.compile else 5))
    last, _ = step()
    memory = bench.peak_memory()
    seen = verdict.observed(observer.reports)
    losses = [_number(first), _number(last)]
    more = {
        "words": list(words),
        "seconds": seconds,
        "dtype": run.mode.dtype,
        "mechanism": run.mode.mechanism,
        "tf32": run.mode.tf32,
        "peak_memory_bytes": memory,
        "verdict": seen["verdict"],
        "why": seen.get("why"),
        "half_flop_share": seen.get("half_flop_share"),
        "loss": losses,
        "finite": None not in losses,
        "loss_scale": run.precision.scale,
    }
    if recipe == "simplenet":
        more["tflops"] = simplenet_flops(run.settings) / seconds / 1e12
    rate = run.settings.batch / seconds
    work = fit.get("work")
    if work is None:
        return Row(part=recipe, name=name, value=rate, unit="samples/s", more=more)
    more["tflops"] = rate * work.per_sample * work.flops / 1e12
    return Row(part=recipe, name=name, value=rate * work.per_sample, unit="tokens/s", more=more)


def simplenet_flops(settings: Any) -> float:
    """FLOPs of one step: three products for each layer, but the first one's inputs need no gradient."""
    hyper = settings.train
    return 2.0 * settings.batch * hyper.width**2 * (3 * hyper.layers - 1)


def _number(loss: Any) -> float | None:
    value = sum(float(part) for part in (loss.values() if isinstance(loss, dict) else [loss]))
    return value if abs(value) < float("inf") else None


def quietly(act: Callable[[], Any]) -> tuple[Any, str]:
    """The result of `act` and its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        result = act()
    return result, output.getvalue()
