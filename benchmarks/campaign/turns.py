"""Two versions of the same step in alternation, so that other load on the device affects both alike.

o2 against o1, o2 as this project does it against o2 written by hand in plain torch, and deterministic against default.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_launcher.recipes.resnet50 import train_torch as resnet50
from amp_launcher.torch.devices import make_repeatable
from benchmarks.campaign.recipes import Captured, capture, step_of
from benchmarks.campaign.rows import Bench, Row, Task

PART = "by turns"
ROUNDS, STEPS = 7, 8
RECIPES = {"simplenet": (), "resnet50": ("batch=256",), "efficientnet": ("batch=256",), "gan": (), "gpt": ()}
BY_HAND = "resnet50 by hand / o2"
DETERMINISTIC = {"resnet50": ("batch=256",), "gpt": ()}


def of(recipe: str) -> str:
    """The name of a recipe's row."""
    return f"{recipe} o1 / o2"


def tasks() -> list[Task]:
    return [
        *(
            Task(
                part=PART,
                name=of(recipe),
                run=lambda bench, recipe=recipe: _levels(bench, recipe),
                estimate=20,
                rehearsed=recipe == "simplenet",
            )
            for recipe in RECIPES
        ),
        Task(part=PART, name=BY_HAND, run=_by_hand, estimate=20),
    ]


def deterministic() -> list[Task]:
    """What `deterministic=true` costs at o2: its time over that of the default. For processes of their own."""
    return [
        Task(
            part=PART,
            name=f"{recipe} o2 deterministic / default",
            run=lambda bench, recipe=recipe: [_deterministic(bench, recipe)],
            estimate=30,
            rehearsed=recipe == "gpt",
        )
        for recipe in DETERMINISTIC
    ]


def _deterministic(bench: Bench, recipe: str) -> Row:
    def steps(on: bool) -> Callable[[], Any]:
        words = ("amp=o2", *DETERMINISTIC[recipe], f"deterministic={on}")
        step = step_of(capture(bench, recipe, words))

        def act() -> None:
            make_repeatable(on)  # the switches are the process's
            step()

        return act

    slow, fast = steps(True), steps(False)
    return row(bench, f"{recipe} o2 deterministic / default", slow, fast)


def _levels(bench: Bench, recipe: str) -> list[Row]:
    o1, o2 = (step_of(capture(bench, recipe, (f"amp={level}", *RECIPES[recipe]))) for level in ("o1", "o2"))
    return [row(bench, of(recipe), o1, o2)]


def _by_hand(bench: Bench) -> list[Row]:
    captured = capture(bench, "resnet50", ("amp=o2", "batch=256"))
    return [row(bench, BY_HAND, _hand_written(captured), step_of(captured))]


def row(
    bench: Bench, name: str, other: Callable[[], Any], ours: Callable[[], Any], part: str = PART, **more: Any
) -> Row:
    """The other's time over ours: above 1, ours is faster. `more` are further timings to report."""
    for act in (other, ours):
        bench.warm(act, 5)
    ratios = []
    for number in range(1 if bench.tiny else ROUNDS):
        turns = (other, ours) if number % 2 == 0 else (ours, other)
        seconds = {act: _block(bench, act) for act in turns}
        ratios.append(seconds[other] / seconds[ours])
    more = {"ratios": ratios, "rounds": len(ratios), "steps_each": STEPS, **more}
    return Row(part=part, name=name, value=statistics.median(ratios), unit="x", more=more)


def _block(bench: Bench, act: Callable[[], Any]) -> float:
    bench.wait()
    began = time.perf_counter()
    for _ in range(1 if bench.tiny else STEPS):
        act()
    bench.wait()
    return time.perf_counter() - began


def _hand_written(captured: Captured) -> Callable[[], None]:
    """Half-precision weights except norms, float32 masters, autocast for activations."""
    run, fit = captured
    settings, hyper, device, dtype = run.settings, run.settings.train, run.world.device, run.precision.dtype
    net = resnet50.Net(hyper).to(device, memory_format=torch.channels_last).to(dtype)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    halves = [parameter for parameter in net.parameters() if parameter.dtype == dtype]
    norms = [parameter for parameter in net.parameters() if parameter.dtype != dtype]
    masters = [parameter.detach().float() for parameter in halves]
    for master in masters:
        master.grad = torch.zeros_like(master)
    gradients = [master.grad for master in masters]
    decayed = [master for master in masters if master.ndim > 1]
    others = [*(master for master in masters if master.ndim == 1), *norms]
    groups = [{"params": decayed, "weight_decay": hyper.weight_decay}, {"params": others, "weight_decay": 0.0}]
    rate = fit["optimizers"][0].param_groups[0]["lr"]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=hyper.momentum, fused=run.world.fused)
    ((images, labels),), _ = resnet50.synthetic_batch(run)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype):
            logits = net(images).float()
            loss = cross_entropy(logits, labels, label_smoothing=hyper.label_smoothing)
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_(gradients, [weight.grad for weight in halves])
            optimizer.step()
            torch._foreach_copy_(halves, masters)
        for parameter in (*halves, *norms):
            parameter.grad = None

    assert settings.accumulate == 1
    return step
