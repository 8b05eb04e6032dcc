"""A recipe's step against a loop written by hand in plain torch: same model, mode and data, step by step in turn."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import Measured, Timing
from recipes.data import images
from recipes.settings import Settings
from recipes.torch_ import loop, mnist
from recipes.torch_.loop import Run
from recipes.torch_.supervised import to_device
from recipes.trainer.training import choose_steps

EPOCHS = 12
HandWritten = Callable[[Run], Callable[[torch.Tensor], None]]
"""From a run, of which it takes settings and device, to a step on one micro-batch's sample indices."""


def o0(folder: Path) -> Measured:
    return _measure(folder, "o0")


def o1(folder: Path) -> Measured:
    return _measure(folder, "o1")


def o2(folder: Path) -> Measured:
    return _measure(folder, "o2")


def _measure(folder: Path, level: str) -> Measured:
    return measure(
        folder,
        name=f"step-{level}",
        recipe="mnist",
        words=[f"amp={level}", f"epochs={EPOCHS}"],
        hand=HAND_WRITTEN[level],
        limit=1.02,
        note="mnist on digits, batch 128",
    )


def measure(
    folder: Path, *, name: str, recipe: str, words: Sequence[str], hand: HandWritten, limit: float, note: str
) -> Measured:
    """Run the recipe with the words, and between its steps those of the hand-written loop."""
    level = next(word for word in words if word.startswith("amp=")).removeprefix("amp=")
    ours, theirs = f"the recipe's step at {level}", "a hand-written step"
    turns: list[Turns] = []

    def train(run: Run) -> None:
        fit = run.fit

        def fit_by_turns(**asked: Any) -> None:
            turns.append(Turns(run, hand(run), asked["samples"]))
            fit(**{**asked, "step": turns[0].around(asked["step"])})

        run.fit = fit_by_turns  # type: ignore[method-assign]
        importlib.import_module(f"recipes.torch_.{recipe}").train(run)

    torch.set_num_threads(1)  # so that a step takes what its own work takes, whatever else the machine does
    with open(folder / "out", "w", encoding="utf-8") as out, contextlib.redirect_stdout(out):
        code = loop.main(recipe, train, [*words, "checkpoint.every=0", f"run={folder / 'run'}"])
    if code != loop.DONE:
        raise RuntimeError(f"the recipe ended with exit code {code}")
    timings = {ours: Timing(seconds=tuple(turns[0].ours)), theirs: Timing(seconds=tuple(turns[0].theirs))}
    where = "one thread" if turns[0].device.type == "cpu" else turns[0].device.type
    return Measured(
        name=name,
        claim=f"a step of {recipe} at {level} at most {limit} times a hand-written one",
        limit=limit,
        ours=ours,
        theirs=theirs,
        timings=timings,
        note=f"{note}, {where}; all that happens between two steps counts, observed steps do not",
    )


class Turns:
    """Between the recipe's steps, steps of the hand-written loop: the recipe's time is from one turn to the next."""

    def __init__(self, run: Run, hand: Callable[[torch.Tensor], None], samples: int) -> None:
        self.device = run.world.device
        self.ours: list[float] = []
        self.theirs: list[float] = []
        # A GPU works on while Python goes ahead: there several steps make a turn, and its end waits for the device.
        self._block = 10 if self.device.type == "cuda" else 1
        self._hand = hand
        self._per_epoch, self._number = samples // run.settings.batch, 0
        total = run.settings.steps or (run.settings.epochs or 1) * self._per_epoch
        self._watched = choose_steps(total, run.settings.seed)
        self._began: float | None = None

    def around(self, step: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
        def stepping(batch: torch.Tensor) -> object:
            self._turn(batch)
            return step(batch)

        return stepping

    def _turn(self, batch: torch.Tensor) -> None:
        within, number = self._number % self._per_epoch, self._number
        self._number += 1
        if within % self._block:
            return
        now = self._now()
        if self._began is not None:
            self.ours.append((now - self._began) / self._block)
            self._began = None
        steps = {number + 1 + each for each in range(self._block)}
        # What is observed, and the end of an epoch with its evaluation, are no part of a step.
        if within + self._block < self._per_epoch and not steps & self._watched:
            began = self._now()
            for _ in range(self._block):
                self._hand(batch[0])
            self.theirs.append((self._now() - began) / self._block)
            self._began = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _hand_o0(run: Run) -> Callable[[torch.Tensor], None]:
    settings, device = run.settings, run.world.device
    inputs, labels = to_device(_load(settings).train, device)
    model = mnist.Net(settings.train).to(device).train()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=settings.train.lr, rho=settings.train.rho)

    def step(chosen: torch.Tensor) -> None:
        loss = cross_entropy(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _hand_o1(run: Run) -> Callable[[torch.Tensor], None]:
    settings, device = run.settings, run.world.device
    inputs, labels = to_device(_load(settings).train, device)
    model = mnist.Net(settings.train).to(device).train()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=settings.train.lr, rho=settings.train.rho)

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(inputs[chosen])
            loss = cross_entropy(logits.float(), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _hand_o2(run: Run) -> Callable[[torch.Tensor], None]:
    settings, device = run.settings, run.world.device
    inputs, labels = to_device(_load(settings).train, device)
    model = mnist.Net(settings.train).to(device, torch.bfloat16).train()  # it has no norms
    weights = list(model.parameters())
    masters = [each.detach().float() for each in weights]
    for each in masters:
        each.grad = torch.zeros_like(each)
    gradients = [each.grad for each in masters]
    optimizer = torch.optim.Adadelta(masters, lr=settings.train.lr, rho=settings.train.rho)

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(inputs[chosen])
            loss = cross_entropy(logits.float(), labels[chosen])
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_(gradients, [each.grad for each in weights])
            optimizer.step()
            torch._foreach_copy_(weights, masters)
        model.zero_grad()

    return step


HAND_WRITTEN = {"o0": _hand_o0, "o1": _hand_o1, "o2": _hand_o2}


def _load(settings: Settings) -> images.DataSet:
    return images.load(settings.data, settings.seed)
