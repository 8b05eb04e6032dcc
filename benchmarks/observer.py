"""The cost of observing, in a step of gpt that is observed and in the steps that are not."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_launcher.torch.observe.observer import PrecisionObserver
from benchmarks.measure import Measured, by_turns, torch_processes
from benchmarks.steps_gpt import ABOUT, captured

WORDS = ("amp=o2",)
BLOCK = 4
"""Steps of one side before the other side runs."""
ROUNDS, OBSERVED_ROUNDS = 24, 12
OTHERS_LIMIT = 1.01
"""Limit for an unobserved step: no measurable cost."""
STEP_LIMIT = 2.0
"""Limit for an observed step. A run has three of them, so proof costs no more than three further steps."""
OBSERVED_STEPS = 3
"""The first, a random one, the last."""


def others(folder: Path) -> Measured:
    """Steps after an observed one against those of a process that never had an observer."""
    ours, theirs = "a step after an observed one", "a step without an observer"
    with _worker(WORDS, observes=True) as ask_ours, _worker(WORDS, observes=False) as ask_theirs:
        timings = by_turns({ours: ask_ours, theirs: ask_theirs}, ROUNDS, warm_up=2)
    return Measured(
        claim=f"a step of gpt that is not observed takes at most {OTHERS_LIMIT} times one without an observer",
        limit=OTHERS_LIMIT,
        timings=timings,
        note=f"o2, {ABOUT}, one thread, CPU time over blocks of {BLOCK} steps, each side in a process of its own",
    )


def step(folder: Path) -> Measured:
    """An observed step against the same one, and what that adds to a run."""
    torch.set_num_threads(1)
    take, make_observer = _steps(WORDS)
    observer = make_observer()
    counter = _Counter()
    with counter:
        take()
    numbers = itertools.count(1)

    def observed() -> float:
        began = time.process_time()
        with observer.step(next(numbers)):
            take()
        return time.process_time() - began

    timings = by_turns({"an observed step": observed, "the same step": lambda: _timed(take, 1)}, OBSERVED_ROUNDS)
    mine, plain = timings["an observed step"], timings["the same step"]
    added = statistics.median(one - other for one, other in zip(mine.seconds, plain.seconds, strict=True))
    return Measured(
        claim=f"an observed step of gpt takes at most {STEP_LIMIT:g} times the step; a run has {OBSERVED_STEPS}",
        limit=STEP_LIMIT,
        timings=timings,
        note=f"o2, {ABOUT}, one thread, CPU time; proof adds {OBSERVED_STEPS * added:.2f} s to a run, "
        f"{added / counter.count * 1e6:.0f} us for each of a step's {counter.count:,} operations",
    )


class _Counter(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def _steps(words: tuple[str, ...]) -> tuple[Callable[[], Any], Callable[[], PrecisionObserver]]:
    """gpt's step on one batch, and a factory of observers of its model."""
    run, fit = captured(*words)
    indices = numpy.arange(run.settings.batch).reshape(run.settings.accumulate, -1)
    batch = fit["load"](0, indices)
    return lambda: fit["step"](batch), lambda: PrecisionObserver(fit["model"], run.precision.resolved)


def _timed(take: Callable[[], Any], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        take()
    return (time.process_time() - began) / count


@contextlib.contextmanager
def _worker(words: tuple[str, ...], observes: bool) -> Iterator[Callable[[], float]]:
    """A process that runs a block of steps on request and returns the CPU seconds of one."""
    context = torch_processes()
    parent_end, worker_end = context.Pipe()
    process = context.Process(target=_serve, args=(worker_end, words, observes), daemon=True)
    process.start()
    worker_end.close()  # so that a failed worker ends the wait

    def ask() -> float:
        parent_end.send(True)
        seconds: float = parent_end.recv()
        return seconds

    yield ask
    parent_end.send(False)
    process.join()


def _serve(asked: Connection, words: tuple[str, ...], observes: bool) -> None:
    torch.set_num_threads(1)
    take, make_observer = _steps(words)
    observer = make_observer() if observes else None
    while asked.recv():
        with observer.step(1) if observer else contextlib.nullcontext():
            take()
        asked.send(_timed(take, BLOCK))
