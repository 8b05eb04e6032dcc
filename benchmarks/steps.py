"""A recipe's step against a loop written by hand, in one process: a block of steps of each in turn.

What is compared is CPU time, of all threads: other processes stretch a step's time on the clock by tens of percent, and
its CPU time by few. Both sides compute with one thread, so a step that nothing disturbs takes about its CPU time; the
wall-clock time is reported too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from amp_launcher.around.replaced import replaced
from amp_launcher.loop import execution
from amp_launcher.loop.proof import choose_steps
from amp_launcher.loop.protocols import Executor
from amp_launcher.loop.recorder import Executed
from benchmarks.measure import Measured, Skipped, Timing

BLOCK = 4
"""Steps of one side before the other side runs."""
WARM_UP = 2
"""First blocks of each side, which are not counted."""
LIMIT = 1.03
MAY_ADD = 0.3e-3
"""Seconds of CPU time that a trainer may add to a step."""

HandStep = Callable[[Any], object]
"""One step, or another thing to time, on the indices of the samples that the recipe's step has."""
HandWritten = Callable[[Any], HandStep]
"""From the recipe's `Run`, of which it takes settings and nothing that was made for the recipe, to such a step."""


SIZES = {
    "mnist": (("data=synthetic", "batch=128", "steps=160"), "random images, batch 128"),
    "simplenet": (("train.width=512", "batch=1024", "steps=200"), "nine layers of 512, batch 1024"),
    "resnet50": (("train.image_size=32", "batch=8", "steps=100"), "one random batch of 8 images of 32x32"),
    "efficientnet": (
        ("data=synthetic", "train.image_size=32", "batch=16", "steps=100"),
        "random images of 32x32, batch 16",
    ),
    "gan": (("data=digits", "batch=16", "steps=120"), "digits, batch 16"),
}
"""The words and the sizes, for people, of a recipe's benchmark."""
SMALL = ("train.width=8", "train.layers=1", "batch=8", "steps=4000"), "one layer of 8, batch 8"
"""Of simplenet, so that it computes almost nothing."""
RESIZED = (
    ("data=synthetic", "train.image_size=224", "batch=4", "steps=32"),
    "four random images of CIFAR-100's shape resized to 224x224",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """A recipe in a framework, with its settings."""

    framework: str
    recipe: str
    level: str
    words: Sequence[str]
    """Others than `amp`, as on the command line, including `steps`."""
    about: str
    """The sizes, for people."""

    def module(self) -> Any:
        """The module of hand-written loops in its framework: `BY_HAND`, `INPUTS` and `one_thread`. Raises `Skipped`."""
        if importlib.util.find_spec(self.framework) is None:
            raise Skipped(f"{self.framework} is not installed")
        return importlib.import_module(f"benchmarks.steps_{self.framework}")


def sized(framework: str, recipe: str, level: str, sizes: tuple[Sequence[str], str] | None = None) -> Trainer:
    """With the words and the sizes of the recipe's benchmark, or these."""
    words, about = sizes or SIZES[recipe]
    return Trainer(framework=framework, recipe=recipe, level=level, words=words, about=about)


def recipe(folder: Path, framework: str, recipe: str, level: str) -> Measured:
    """A recipe's step in a framework against the loop written by hand there."""
    trainer = sized(framework, recipe, level)
    limit = 1.02 if (framework, recipe) == ("torch", "mnist") else LIMIT
    return step(folder, trainer, trainer.module().BY_HAND[recipe], limit)


def step(
    folder: Path, trainer: Trainer, hand: HandWritten, limit: float = LIMIT, *, theirs: str = "", claim: str = ""
) -> Measured:
    """The recipe's step at most `limit` times the other one, `theirs`."""
    turns = take_turns(folder, trainer, hand)
    ours, theirs = f"the recipe's step at {trainer.level}", theirs or "a hand-written step"
    step_of = f"a step of {trainer.recipe} at {trainer.level} in {trainer.framework}"
    return Measured(
        claim=claim or f"{step_of} at most {limit} times a hand-written one",
        limit=limit,
        timings={
            ours: turns.ours.cpu,
            theirs: turns.theirs.cpu,
            f"{ours}, wall-clock": turns.ours.clock,
            f"{theirs}, wall-clock": turns.theirs.clock,
        },
        note=f"{trainer.about}, {_HOW}; all that happens between two steps counts, observed steps do not",
    )


def added(folder: Path, framework: str, level: str) -> Measured:
    """The overhead of the trainer, measured on a step that computes almost nothing."""
    trainer = sized(framework, "simplenet", level, SMALL)
    turns = take_turns(folder, trainer, trainer.module().BY_HAND["simplenet"])
    ours, others = turns.ours.cpu, turns.theirs.cpu
    more = statistics.median(one - other for one, other in zip(ours.seconds, others.seconds, strict=True))
    allowed = Timing(seconds=tuple(second + MAY_ADD for second in others.seconds))
    return Measured(
        claim=f"the trainer in {framework} adds at most {MAY_ADD * 1e3:g} ms to a step",
        limit=1.0,
        timings={
            "the recipe's step": ours,
            f"a hand-written step and {MAY_ADD * 1e3:g} ms": allowed,
            "a hand-written step": others,
        },
        note=f"{trainer.about}, {_HOW}; it added {more * 1e3:.3f} ms",
    )


def input_share(folder: Path, framework: str, recipe: str, level: str) -> Measured:
    """Making a batch at most a fiftieth of the recipe's step, which makes it and learns from it."""
    trainer = sized(framework, recipe, level, RESIZED if recipe == "efficientnet" else None)
    turns = take_turns(folder, trainer, trainer.module().INPUTS[recipe])
    return Measured(
        claim=f"making a batch takes at most 0.02 of a step of {recipe} in {framework}",
        limit=0.02,
        timings={"making a batch": turns.theirs.cpu, "the step, which makes its batch itself": turns.ours.cpu},
        note=f"{trainer.about}, {_HOW}; the data lie in the device's memory, and nothing else is waited for",
    )


_HOW = f"one thread, CPU time over blocks of {BLOCK} steps"


def take_turns(folder: Path, trainer: Trainer, hand: HandWritten) -> Turns:
    """Train as the words say, on the CPU, the hand-written loop taking its turns between the recipe's steps."""
    trainer.module().one_thread()
    loop = importlib.import_module(f"amp_launcher.{trainer.framework}.loop")
    module = importlib.import_module(f"amp_launcher.recipes.{trainer.recipe}.train_{trainer.framework}")
    turns: list[Turns] = []

    def train(run: Any) -> None:
        train_it = execution.train

        def by_turns(run: Any, **asked: Any) -> None:
            watched = choose_steps(run.settings.steps, run.settings.seed)
            turns.append(Turns(asked["executor"], hand(run), watched))
            train_it(run, **{**asked, "executor": turns[0], "evaluate": None})  # not part of a step

        with replaced(execution, "train", by_turns):
            module.train(run)

    words = [f"amp={trainer.level}", *trainer.words, "device=cpu", "checkpoint.every=0", f"run={folder / 'run'}"]
    with open(folder / "out", "w", encoding="utf-8") as out, contextlib.redirect_stdout(out):
        code = loop.main(trainer.recipe, train, words)
    if code != loop.DONE:
        printed = (folder / "out").read_text(encoding="utf-8")
        raise RuntimeError(f"{trainer.recipe} in {trainer.framework} ended with exit code {code}: {printed[-2000:]}")
    return turns[0].paired()


class Blocks:
    """Seconds a step of each block of steps."""

    def __init__(self) -> None:
        self._cpu: list[float] = []
        self._clock: list[float] = []
        self._began = (0.0, 0.0)

    def begin(self) -> None:
        self._began = (time.process_time(), time.perf_counter())

    def end(self) -> None:
        cpu, clock = self._began
        self._cpu.append((time.process_time() - cpu) / BLOCK)
        self._clock.append((time.perf_counter() - clock) / BLOCK)

    def __len__(self) -> int:
        return len(self._cpu)

    def cut(self, count: int) -> None:
        """Without the first `count`."""
        del self._cpu[count:], self._clock[count:]

    @property
    def cpu(self) -> Timing:
        return Timing(seconds=tuple(self._cpu[WARM_UP:]))

    @property
    def clock(self) -> Timing:
        return Timing(seconds=tuple(self._clock[WARM_UP:]))


class Turns:
    """The recipe's executor, between whose blocks of steps the hand-written loop takes its own: `protocols.Executor`.

    Ours, theirs, theirs, ours, so that a machine that slows down slows both alike. A block of the recipe's is from its
    first step's begin to where the step after its last would begin.
    """

    def __init__(self, inner: Executor, hand: HandStep, watched: set[int]) -> None:
        self.at_once = inner.at_once
        self.ours, self.theirs = Blocks(), Blocks()
        self._inner, self._hand = inner, hand
        self._watched = watched
        self._number = 0
        self._left = 0
        """Remaining steps of the recipe's block."""
        self._counts = False
        """Whether that block is one to count: it has no step whose time says nothing of the speed."""

    def shares(self, order: numpy.ndarray, epoch: int) -> Any:
        return self._inner.shares(order, epoch)

    def execute(self, shares: Any, first: int, count: int) -> Executed:
        if self._left == 0:
            if self._counts and self._number + 1 not in self._watched:  # only the recipe's step is observed
                self.ours.end()
                if len(self.ours) > len(self.theirs):
                    for _ in range(2):
                        self._take_turn([shares[(first + offset) % len(shares)][0] for offset in range(BLOCK)])
            self._left, self._counts = BLOCK, True
            self.ours.begin()
        executed = self._inner.execute(shares, first, count)
        self._number, self._left = self._number + count, self._left - count
        self._counts &= not executed.prepared and self._number not in self._watched
        return executed

    def paired(self) -> Turns:
        """The same, with as many blocks of each."""
        self.theirs.cut(len(self.ours))
        return self

    def _take_turn(self, batches: Sequence[Any]) -> None:
        self.theirs.begin()
        for batch in batches:
            self._hand(batch)
        self.theirs.end()
