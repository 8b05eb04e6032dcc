"""What all recipes in TensorFlow share: start and end of a run, and its record.

A recipe makes its models and defines one step on one replica; `Run.fit` does the rest:

    def train(run: Run) -> None:
        images, labels = run.constant(all_images), run.constant(all_labels)   # on every replica's device
        net, optimizer = run.prepare(lambda: Net(settings), lambda: keras.optimizers.SGD(0.1))

        def step(batch):                             # traced once: a graph, on each replica's own samples
            total = tf.zeros(())
            for chosen in tf.unstack(batch):         # micro-batches, one after another
                with run.precision:
                    logits = net(tf.gather(images, chosen), training=True)
                    loss = cross_entropy(tf.gather(labels, chosen), logits) / len(batch)
                run.precision.backward(loss)
                total += loss
            return total, run.precision.step(optimizer, clip=settings.clip)

        run.fit(models=[net], optimizers=[optimizer], step=step, evaluate=..., samples=len(all_images), ...)

With several optimizers: `run.precision.backward(loss, optimizer)` and one `step` each. In a step, take random numbers
from `tf.random.stateless_*` with `run.seed()`: they follow from the run's seed and position. `step` is traced without
AutoGraph: Python loops are unrolled, and a choice by a tensor's value is `tf.cond` or `tf.where`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy
import tensorflow as tf

from amp_launcher import arguments
from amp_launcher.arguments import Arguments
from amp_launcher.leave import DONE
from amp_launcher.loop import execution
from amp_launcher.loop import main as trainer
from amp_launcher.loop import run as shared
from amp_launcher.loop.array_state import ArrayState
from amp_launcher.loop.profiling import Profiler
from amp_launcher.loop.protocols import Evaluate
from amp_launcher.loop.steps import Load, Schedule
from amp_launcher.tensorflow import devices, profiling, xla
from amp_launcher.tensorflow.devices import World
from amp_launcher.tensorflow.executor import GraphSteps, Loss, Step
from amp_launcher.tensorflow.hardware import TensorFlowDevice
from amp_launcher.tensorflow.observe.observer import PrecisionObserver
from amp_launcher.tensorflow.precision import Mechanism, Precision, precision_of, replicas
from amp_launcher.tensorflow.state import Trained, machine

__all__ = ["DONE", "Evaluate", "Load", "Loss", "Run", "Schedule", "Step", "main", "start"]


class Run(shared.Run):
    """One execution of a recipe by this process: its settings, its precision, and its rank."""

    framework = "tensorflow"
    world: World
    precision: Precision

    @classmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        xla.dump_programs(chosen.settings.xla)
        world = devices.join(chosen.settings.device, arguments.planned_ranks(chosen.plan), os.environ)
        return cls(chosen, world, began)

    def __init__(self, chosen: Arguments, world: World, began: float) -> None:
        device = TensorFlowDevice(world.kind, world.devices)
        super().__init__(chosen, world, device, world.devices, began)
        deterministic = self.settings.deterministic
        # XLA refuses to compile operations of which it has no deterministic implementation.
        self.deterministic = world.kind == "cpu" and not self.settings.xla if deterministic is None else deterministic
        devices.make_repeatable(self.deterministic, self.settings.seed)
        with world.strategy.scope():
            mechanism = Mechanism.of(
                self.settings.amp,
                self.settings.loss_scale,
                world.kind,
                tf32=self.settings.tf32,
                xla=self.settings.xla,
            )
            self.precision = precision_of(mechanism)
            self._random = keras.random.SeedGenerator(self.settings.seed % 2**31)
        xla.configure(self.settings.xla, self.settings.amp.level, world.kind, world.devices)

    def prepare(
        self, model: Callable[[], keras.Model], optimizer: Callable[[], keras.Optimizer]
    ) -> tuple[keras.Model, keras.Optimizer]:
        """What these functions make, on every replica: a model in the mode's dtypes, and the optimizer that steps it.
        Each replica draws its own dropout."""
        with self.world.strategy.scope():
            prepared, stepping = self.precision.prepare(model, optimizer())
        if self.world.devices > 1:
            replicas.separate_dropout(prepared)
        return prepared, stepping

    def constant(self, array: numpy.ndarray) -> Any:
        """An array for `step` to read, on the device of every replica."""
        if self.world.devices == 1:
            return tf.constant(array)
        with self.world.strategy.scope():
            return tf.Variable(array, trainable=False)

    def seed(self) -> tf.Tensor:
        """In `step`: a seed for one call of `tf.random.stateless_*`, different in every step and replica."""
        return replicas.seed_for_replica(self._random.next())

    def fit(
        self,
        *,
        models: Sequence[keras.Model],
        optimizers: Sequence[keras.Optimizer],
        step: Step,
        evaluate: Evaluate | None,
        samples: int,
        data: str,
        data_digest: str,
        load: Load | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Train to the end or until a stop request, and write the result; sets `exit_code`.

        `evaluate` is None where no samples are held out; `data` describes the data set in one line. Without `load` the
        step gets sample indices; without `schedule` learning rates stay constant. Continues from the run folder's
        checkpoint, if it has one.
        """
        trained = Trained(models=models, optimizers=optimizers, random=[self._random])
        observer = PrecisionObserver(models, optimizers, self.precision.resolved, self.world)
        execution.train(
            self,
            state=ArrayState(
                tensors=trained,
                precision=self.precision,
                settings=self.settings,
                world=self.world,
                facts=machine(self.world),
            ),
            observer=observer,
            executor=GraphSteps(step, optimizers, load, schedule, self.settings, self.world, observer),
            evaluate=evaluate,
            samples=samples,
            data=data,
            data_digest=data_digest,
        )

    def profiler(self) -> Profiler | None:
        return profiling.make(self.settings.profile, self.world.rank)


main = functools.partial(trainer.main, Run)
start = functools.partial(trainer.start, Run)
