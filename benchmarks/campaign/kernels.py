"""The kernels that a step launches, by the profiler: for finding what is slow, not for comparing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmarks.campaign.recipes import capture, step_of
from benchmarks.campaign.rows import Bench, Row, Task

PART = "kernels"
STEPS, LONGEST, NAME = 3, 15, 120
CASES = (
    ("simplenet", ("amp=o2",)),
    ("simplenet", ("amp=o1",)),
    ("resnet50", ("amp=o2", "batch=256")),
    ("resnet50", ("amp=o0", "tf32=true", "batch=256")),
    ("efficientnet", ("amp=o2", "batch=256")),
    ("gan", ("amp=o2",)),
    ("gpt", ("amp=o2",)),
)


def tasks() -> list[Task]:
    return [
        Task(
            part=PART,
            name=" ".join((recipe, *words)),
            run=lambda bench, recipe=recipe, words=words: [_kernels(bench, recipe, words)],
            rehearsed=(recipe, *words) == ("simplenet", "amp=o2"),
        )
        for recipe, words in CASES
    ]


def _kernels(bench: Bench, recipe: str, words: tuple[str, ...]) -> Row:
    """The number of kernels of a step, the time that they keep the GPU busy, and the longest of them.

    On a CPU, in a rehearsal, they are torch's operations.
    """
    step = step_of(capture(bench, recipe, words))
    bench.warm(step, 5)
    gpu = bench.device.type == "cuda"
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    ) as profile:
        for _ in range(STEPS):
            step()
        bench.wait()
    kind = DeviceType.CUDA if gpu else DeviceType.CPU
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profile.events() or ():
        if event.device_type == kind and not getattr(event, "is_user_annotation", False):
            seconds[event.name] += event.time_range.elapsed_us() / 1e6 / STEPS
            counts[event.name] += 1
    longest: list[Any] = [
        {"name": name[:NAME], "seconds": busy, "launches": counts[name] / STEPS}
        for name, busy in seconds.most_common(LONGEST)
    ]
    more = {"busy_seconds": seconds.total(), "longest": longest}
    return Row(part=PART, name=" ".join((recipe, *words)), value=counts.total() / STEPS, unit="a step", more=more)
