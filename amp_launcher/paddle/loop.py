"""What all recipes in Paddle share: start and end of a run, and its record."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from amp_launcher import arguments
from amp_launcher.arguments import Arguments
from amp_launcher.leave import DONE, FAILED
from amp_launcher.loop import execution
from amp_launcher.loop import main as trainer
from amp_launcher.loop import run as shared
from amp_launcher.loop.array_state import ArrayState, Tensors
from amp_launcher.loop.protocols import Evaluate, Executed
from amp_launcher.loop.steps import Steps
from amp_launcher.paddle import devices
from amp_launcher.paddle.devices import PaddleDevice, World
from amp_launcher.paddle.precision import Precision, precision_of
from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.paddle.precision.mechanisms import mechanism_of
from amp_launcher.paddle.state import machine
from amp_launcher.paddle_apis import is_static
from amp_launcher.precision.resolved import resolve
from amp_launcher.precision.step_outcome import StepOutcome

__all__ = ["DONE", "FAILED", "Run", "Step", "main", "start"]

Step = Callable[[Any], tuple[Any, StepOutcome]]
"""From sample indices, NumPy's int64 of shape [micro-batches, samples in each], to the mean loss and the outcome."""


class Run(shared.Run):
    """One execution of a recipe by this process: its settings, its precision, and its rank."""

    framework = "paddle"
    world: World
    precision: Mechanism
    calls: Precision
    """Those of a loop in this precision."""

    @classmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        world = devices.join(chosen.settings.device, arguments.planned_ranks(chosen.plan), os.environ)
        return cls(chosen, world, began)

    def __init__(self, chosen: Arguments, world: World, began: float) -> None:
        super().__init__(chosen, world, PaddleDevice(world.kind), world.size, began)
        settings = self.settings
        resolved = resolve(
            settings.amp,
            settings.loss_scale,
            framework="paddle",
            device=world.kind,
            capability=devices.capability_of(world.kind),
            environ=os.environ,
            tf32=settings.tf32,
            xla=settings.xla,
            static=is_static(settings),
        )
        self.precision = mechanism_of(resolved)
        self.calls = precision_of(self.precision)
        deterministic = settings.deterministic
        self.deterministic = world.kind == "cpu" if deterministic is None else deterministic
        if self.deterministic and world.kind == "cuda":
            paddle.set_flags({"FLAGS_cudnn_deterministic": True})
        paddle.seed(settings.seed % 2**63)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """A context for the model in evaluation, whether it is trained by a loop or by `paddle.Model`."""
        with self.calls, self.precision.forward():
            yield

    def fit(
        self,
        *,
        tensors: Tensors,
        observer: Any,
        optimizer: paddle.optimizer.Optimizer,
        step: Step,
        samples: int,
        data: str,
        data_digest: str,
        evaluate: Evaluate | None = None,
    ) -> None:
        """Train to the end or until a stop request, and write the result; sets `exit_code`.

        Random numbers of a step follow from the run's seed and the step's position. `tensors` and `observer` are those
        of eager layers, or of a static graph.
        """
        execution.train(
            self,
            state=ArrayState(
                tensors=tensors,
                precision=self.precision,
                settings=self.settings,
                world=self.world,
                facts=machine(self.world),
            ),
            observer=observer,
            executor=_Steps(step, optimizer, self),
            evaluate=evaluate,
            samples=samples,
            data=data,
            data_digest=data_digest,
        )


main = functools.partial(trainer.main, Run)
start = functools.partial(trainer.start, Run)


class _Steps(Steps):
    """`amp_launcher.loop.protocols.Executor` in Paddle: one step at a time."""

    def __init__(self, step: Step, optimizer: paddle.optimizer.Optimizer, run: Run) -> None:
        super().__init__(run.settings, run.world)
        self._step = step
        self._optimizer = optimizer

    def execute(self, shares: Any, first: int, count: int) -> Executed:
        position = f"{self._settings.seed} {self._epoch} {first} {self._world.rank}"
        paddle.seed(random.Random(position).randrange(2**63))
        loss, outcome = self._step(shares[first])
        return Executed(loss=loss, lr=self._optimizer.get_lr(), outcome=outcome)
