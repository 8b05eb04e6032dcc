"""o2 as this project does it, against o2 written by hand in plain torch: whole steps of ResNet-50, by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.campaign.recipes import capture, step_of
from benchmarks.campaign.rows import Bench, Row, Task
from recipes.torch_ import resnet50

PART = "o2 by hand"
ROUNDS, STEPS = 7, 10


def tasks() -> list[Task]:
    return [Task(part=PART, name="resnet50 o2 / by hand", run=_resnet50, estimate=30)]


def _resnet50(bench: Bench) -> list[Row]:
    captured = capture(bench, "resnet50", ("amp=o2", "batch=256"))
    ours = step_of(captured)
    theirs = _hand_written(captured[0])
    for _ in range(1 if bench.tiny else 10):
        ours()
        theirs()
    ratios = []
    for number in range(1 if bench.tiny else ROUNDS):
        first, second = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        taken = {act: _block(bench, act) for act in (first, second)}
        ratios.append(taken[ours] / taken[theirs])
    more = {"ratios": ratios, "rounds": len(ratios), "steps_each": STEPS}
    return [Row(part=PART, name="resnet50 o2 / by hand", value=statistics.median(ratios), unit="x its time", more=more)]


def _block(bench: Bench, act: Callable[[], Any]) -> float:
    bench.wait()
    began = time.perf_counter()
    for _ in range(1 if bench.tiny else STEPS):
        act()
    bench.wait()
    return time.perf_counter() - began


def _hand_written(run: Any) -> Callable[[], None]:
    """Half-precision weights but for the norms, float32 masters, autocast for what is cast on the way."""
    settings, hyper, device, dtype = run.settings, run.settings.train, run.world.device, run.precision.dtype
    net = resnet50.Net(hyper).to(device, memory_format=torch.channels_last).to(dtype)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    halves = [each for each in net.parameters() if each.dtype == dtype]
    norms = [each for each in net.parameters() if each.dtype != dtype]
    masters = [each.detach().float() for each in halves]
    for each in masters:
        each.grad = torch.zeros_like(each)
    gradients = [each.grad for each in masters]
    decayed = [each for each in masters if each.ndim > 1]
    others = [*(each for each in masters if each.ndim == 1), *norms]
    groups = [{"params": decayed, "weight_decay": hyper.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=hyper.lr, momentum=hyper.momentum)
    ((images, labels),), _ = resnet50.synthetic_batch(run)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype):
            logits = net(images).float()
            loss = cross_entropy(logits, labels, label_smoothing=hyper.label_smoothing)
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_(gradients, [each.grad for each in halves])
            optimizer.step()
            torch._foreach_copy_(halves, masters)
        for each in (*halves, *norms):
            each.grad = None

    assert settings.accumulate == 1
    return step
