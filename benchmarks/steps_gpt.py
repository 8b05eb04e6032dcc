"""gpt's step in torch against the same step written by hand, and its rate against that of nanoGPT's training loop."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from amp_launcher import arguments
from amp_launcher.recipes import gpt as recipe
from amp_launcher.recipes.data import tokens
from amp_launcher.recipes.gpt import GptSettings
from amp_launcher.recipes.gpt import train_torch as trainer_of_gpt
from amp_launcher.recipes.gpt.train_torch import Net
from amp_launcher.settings import Data
from amp_launcher.torch import devices
from amp_launcher.torch.loop import Run
from benchmarks import steps
from benchmarks.measure import Measured
from benchmarks.steps import HandStep

LIMIT = 1.02
SIZES = ("steps=130",)
ABOUT = "4 layers of 128, batch 8 of 256 tokens"
CONTEXT, MICRO_BATCHES = 256, 2
LOG_EVERY = 10
"""Steps between two of nanoGPT's lines, for which it waits for the loss."""


def step(folder: Path, level: str, dtype: str) -> Measured:
    words = (*((f"amp.dtype={dtype}",) if level != "o0" else ()), *SIZES)
    return steps.step(folder, steps.sized("torch", "gpt", level, (words, f"{dtype}, {ABOUT}")), by_hand, LIMIT)


def nanogpt(folder: Path) -> Measured:
    """At o1 in bfloat16, on the same files of token ids, in micro-batches."""
    write_files(folder)
    words = ("data=tokens", f"data.dir={folder}", f"accumulate={MICRO_BATCHES}", *SIZES)
    about = f"{ABOUT} in {MICRO_BATCHES} micro-batches, AdamW fused on both sides"
    claim, theirs = "gpt trains at least as many tokens/s as nanoGPT's loop", "an iteration of nanoGPT's loop"
    trainer = steps.sized("torch", "gpt", "o1", (words, about))
    return steps.step(folder, trainer, nanogpt_loop, limit=1.0, theirs=theirs, claim=claim)


def by_hand(run: Run) -> HandStep:
    """The step in plain torch: autocast, half-precision weights with float32 masters at o2, a scaler for float16."""
    hyper: GptSettings = run.settings.train
    level, half = run.settings.amp.level, run.precision.dtype
    text = tokens.load(run.settings.data, hyper).train
    net = Net(hyper)
    matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    masters = matrices
    if level == "o2":
        masters = [parameter.detach().clone() for parameter in matrices]
        for weight, master in zip(matrices, masters, strict=True):
            weight.data = weight.data.to(half)
            master.grad = torch.zeros_like(master)
    gradients = [parameter.grad for parameter in masters]
    stepped = [*masters, *norms]
    optimizer = adam(masters, norms, hyper)
    rates = map(recipe.schedule(run.settings, len(text)), itertools.count())
    scaler = torch.amp.GradScaler("cpu", enabled=half == torch.float16)

    def step(chosen: numpy.ndarray) -> torch.Tensor:
        rate = next(rates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        samples = torch.from_numpy(text.samples(chosen))
        with torch.autocast("cpu", dtype=half, enabled=level != "o0"):
            logits = net(samples[:, :-1]).float()
            loss = cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
        scaler.scale(loss).backward()
        with torch.no_grad():
            if level == "o2":
                torch._foreach_copy_(gradients, [matrix.grad for matrix in matrices])
            scaler.unscale_(optimizer)
            clip_grad_norm_(stepped, hyper.clip)
            scaler.step(optimizer)
            scaler.update()
            if level == "o2":
                torch._foreach_copy_(matrices, masters)
        net.zero_grad()
        return loss.detach()

    return step


def nanogpt_loop(run: Run) -> HandStep:
    """One iteration as in nanoGPT's train.py, on this model: random positions of a memory map that is opened
    for each batch, the next batch read before backward, autocast, clipping, fused AdamW, a loss read now and then.

    The loss is of float32 logits, which autocast itself makes on a GPU.
    """
    hyper, accumulate = run.settings.train, run.settings.accumulate
    count = run.settings.batch // accumulate
    path = Path(run.settings.data.dir, recipe.TOKEN_FILES[0])
    net = Net(hyper)
    matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    optimizer = adam(matrices, norms, hyper)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    numbers = itertools.count()

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = numpy.memmap(path, numpy.uint16, "r")
        begins = torch.randint(len(ids) - hyper.context, (count,)).tolist()
        pieces = [torch.from_numpy(ids[begin : begin + hyper.context + 1].astype(numpy.int64)) for begin in begins]
        return torch.stack([piece[:-1] for piece in pieces]), torch.stack([piece[1:] for piece in pieces])

    inputs, targets = batch()

    def step(chosen: numpy.ndarray) -> float | None:
        nonlocal inputs, targets
        number = next(numbers)
        rate = recipe.learning_rate(hyper, number, run.settings.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in range(accumulate):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = net(inputs).float()
                loss = cross_entropy(logits.flatten(0, 1), targets.flatten()) / accumulate
            inputs, targets = batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(net.parameters(), hyper.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return None if number % LOG_EVERY else loss.item() * accumulate

    return step


def adam(matrices: list[torch.Tensor], norms: list[torch.Tensor], hyper: GptSettings) -> torch.optim.Optimizer:
    groups = [{"params": matrices, "weight_decay": hyper.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    betas = (hyper.beta1, hyper.beta2)
    return torch.optim.AdamW(groups, lr=hyper.lr, betas=betas, eps=recipe.EPSILON, fused=True)


def captured(*words: str) -> tuple[Run, dict[str, Any]]:
    """gpt set up on the CPU by its trainer, and the arguments that it passes to `Run.fit`."""
    chosen = arguments.parse([*words, "device=cpu"], "gpt", "torch")
    world = devices.join("cpu", None, {}, sharded=chosen.settings.parallel == "fsdp")
    run = Run(chosen, world, time.monotonic())
    captured_arguments: dict[str, Any] = {}
    run.fit = captured_arguments.update  # type: ignore[method-assign,assignment]  # collects the arguments
    trainer_of_gpt.train(run)
    return run, captured_arguments


def write_files(folder: Path) -> None:
    """The standard library's bytes as files of token ids."""
    text = tokens.load(Data(name="stdlib"), GptSettings())
    for name, part in zip(recipe.TOKEN_FILES, (text.train, text.held_out), strict=True):
        part.ids.astype(numpy.uint16).tofile(folder / name)
