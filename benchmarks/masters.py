"""o2's optimizer step over ResNet-50's weights, against master weights kept by hand with `torch._foreach`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.torch.precision import Precision
from benchmarks.measure import Measured, Timing, by_turns

ROUNDS, PAIRS = 12, 6
"""The placement of memory changes these times by some percent, so several pairs are made."""


def step(folder: Path) -> Measured:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # as in `training`
    ours, theirs = "precision.step at o2", "master weights by hand"
    make = {ours: _ours, theirs: _by_hand}
    seconds: dict[str, list[float]] = {ours: [], theirs: []}
    for pair in range(PAIRS):
        first, second = (ours, theirs) if pair % 2 == 0 else (theirs, ours)
        timings = by_turns({first: make[first](device), second: make[second](device)}, ROUNDS, warm_up=2)
        for name, timing in timings.items():
            seconds[name] += timing.seconds
    return Measured(
        claim="o2's optimizer step at most 1.05 times a hand-written foreach one",
        limit=1.05,
        timings={name: Timing(seconds=tuple(times)) for name, times in seconds.items()},
        note=f"AdamW over the 161 tensors of ResNet-50, bfloat16, {device.type}, one thread",
    )


def _ours(device: torch.device) -> Callable[[], float]:
    precision = Precision(Amp(level="o2"), loss_scale=LossScale(mode="none"), device=device)
    model = precision.prepare(_model().to(device))
    optimizer = precision.prepare(torch.optim.AdamW(model.parameters()))

    def act() -> None:
        precision.step(optimizer)
        optimizer.zero_grad()

    return _timed(list(model.parameters()), act, device)


def _by_hand(device: torch.device) -> Callable[[], float]:
    weights = list(_model().to(device, torch.bfloat16).parameters())
    masters = [weight.detach().float() for weight in weights]
    for master in masters:
        master.grad = torch.zeros_like(master)
    gradients = [master.grad for master in masters]
    optimizer = torch.optim.AdamW(masters)

    @torch.no_grad()
    def act() -> None:
        torch._foreach_copy_(gradients, [weight.grad for weight in weights])
        optimizer.step()
        torch._foreach_copy_(weights, masters)
        for weight in weights:
            weight.grad = None

    return _timed(weights, act, device)


def _timed(weights: list[torch.Tensor], act: Callable[[], None], device: torch.device) -> Callable[[], float]:
    gradients = [torch.full_like(weight, 1e-3) for weight in weights]

    def run() -> float:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        _wait(device)
        began = time.perf_counter()
        act()
        _wait(device)
        return time.perf_counter() - began

    return run


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _model() -> nn.Module:
    return nn.ParameterList([torch.randn(shape) * 0.01 for shape in _shapes()])


def _shapes() -> Iterator[tuple[int, ...]]:
    """The shapes of ResNet-50's parameters: 161 tensors, 25.6 million values."""
    yield from ((64, 3, 7, 7), (64,), (64,))
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            outputs = 4 * width
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)):
                yield from (shape, (shape[0],), (shape[0],))
            if block == 0:
                yield from ((outputs, inputs, 1, 1), (outputs,), (outputs,))
            inputs = outputs
    yield from ((1000, 2048), (1000,))
