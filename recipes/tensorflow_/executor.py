"""Optimizer steps as graphs: one at a time, or several in one execution."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy
import tensorflow as tf

from recipes import sampling
from recipes.settings import Settings
from recipes.tensorflow_ import xla
from recipes.tensorflow_.devices import World
from recipes.tensorflow_.observe.graphs import STEPS
from recipes.tensorflow_.observe.observer import PrecisionObserver
from recipes.tensorflow_.precision.base import StepOutcome
from recipes.trainer.prefetch import Prefetcher
from recipes.trainer.recorder import Executed

Loss = tf.Tensor | Mapping[str, tf.Tensor]
"""A mean over one replica's samples, a scalar; or several by name, of which the sum is the step's loss."""
Step = Callable[[Any], tuple[Loss, StepOutcome]]
"""From one replica's sample indices [micro-batches, samples in each], or what `load` made of them, to loss, outcome."""
Load = Callable[[int, numpy.ndarray], Any]
"""From an epoch and this process's sample indices of one step, [micro-batches, samples in each], to NumPy arrays with
the same first two dimensions; called in a thread, some steps ahead. It may depend on nothing else."""
Schedule = Callable[[int], float]
"""The learning rate of an optimizer step, counted from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """`recipes.trainer.recorder.Outcome` of several steps: vectors, or None."""

    overflowed: tf.Tensor | None
    loss_scale: tf.Tensor | None
    grad_norm: tf.Tensor | None


class Steps:
    """`recipes.trainer.training.Executor` in TensorFlow.

    A graph is traced for each number of steps at once. With more than one the steps are the iterations of a loop in the
    graph, so Python and the device meet once for all of them.
    """

    def __init__(
        self,
        step: Step,
        optimizers: Sequence[keras.Optimizer],
        load: Load | None,
        schedule: Schedule | None,
        settings: Settings,
        world: World,
        witness: PrecisionObserver,
    ) -> None:
        self.at_once = settings.steps_per_execution
        self._step = step
        self._optimizers = optimizers
        self._schedule = schedule
        self._settings, self._world = settings, world
        self._prefetcher = None if load is None else Prefetcher(lambda position: load(*position))
        self._witness = witness
        self._graphs: dict[int, Any] = {}
        """By the number of steps at once. Called directly: a tf.function looks for the graph anew in every call."""
        self._epoch = 0
        self._next: int | None = None
        compiled = xla.compiles_whole_steps(settings.xla, settings.amp.level, world.devices)
        self._execute = tf.function(self._steps, autograph=False, jit_compile=compiled)

    def shares(self, order: Any, epoch: int) -> numpy.ndarray:
        """[steps, micro-batches, this process's samples in each]."""
        settings, world = self._settings, self._world
        self._epoch, self._next = epoch, None
        return sampling.share(order, settings.batch, settings.accumulate, world.rank, world.size)

    def execute(self, shares: numpy.ndarray, first: int, count: int) -> Executed:
        batches, waited = self._batches(shares, first, count)
        rates = None
        if self._schedule is not None:
            numbers = range(self._epoch * len(shares) + first, self._epoch * len(shares) + first + count)
            rates = tf.constant([self._schedule(number) for number in numbers], tf.float32)
        given = self._distributed(batches), rates
        new = count not in self._graphs
        if new:
            self._graphs[count] = self._execute.get_concrete_function(*given)
        with self._witness.learning() if new else contextlib.nullcontext():
            losses, found = self._graphs[count](*given)
        loss = losses["loss"] if list(losses) == ["loss"] else losses
        outcome = Outcomes(
            overflowed=found.get("overflowed"), loss_scale=found.get("loss_scale"), grad_norm=found.get("grad_norm")
        )
        return Executed(loss=loss, lr=found["lr"], outcome=outcome, waited=waited, prepared=new)

    def _batches(self, shares: numpy.ndarray, first: int, count: int) -> tuple[Any, float | None]:
        """What the steps get, each array with the steps in front: [steps, micro-batches, samples in each, ...]."""
        if self._prefetcher is None:
            return shares[first : first + count], None
        if self._next != first:
            self._prefetcher.start((self._epoch, shares[each]) for each in range(first, len(shares)))
        self._next = first + count
        taken = [self._prefetcher.take() for _ in range(count)]
        batches = [batch for batch, _ in taken]
        together = tf.nest.map_structure(lambda *each: numpy.stack(each) if count > 1 else each[0][None], *batches)
        return together, sum(waited for _, waited in taken)

    def _distributed(self, batches: Any) -> Any:
        """Each replica's part of them, on its device."""
        world = self._world
        if world.devices == 1:
            return tf.nest.map_structure(tf.constant, batches)

        def part(context: tf.distribute.distribute_lib.ValueContext) -> Any:
            index = context.replica_id_in_sync_group % world.local
            return tf.nest.map_structure(
                lambda each: tf.constant(numpy.split(each, world.local, axis=2)[index]), batches
            )

        return world.strategy.experimental_distribute_values_from_function(part)

    def _steps(self, batches: Any, rates: tf.Tensor | None) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The losses and what else each step gave, all of shape [steps]. Traced."""
        local = self._world.strategy.experimental_local_results(batches)
        count = tf.nest.flatten(local[0])[0].shape[0]
        first = self._one(batches, tf.constant(0), rates)  # out of the loop: by it is known what a step gives
        if count == 1:
            return tf.nest.map_structure(lambda each: each[None], first)
        arrays = tf.nest.map_structure(lambda each: tf.TensorArray(each.dtype, count).write(0, each), first)

        def body(number: tf.Tensor, arrays: Any) -> tuple[tf.Tensor, Any]:
            found = self._one(batches, number, rates)
            return number + 1, tf.nest.map_structure(lambda array, each: array.write(number, each), arrays, found)

        _, arrays = tf.while_loop(
            lambda number, arrays: number < count, body, (tf.constant(1), arrays), parallel_iterations=1, name=STEPS
        )
        return tf.nest.map_structure(lambda each: each.stack(), arrays)

    def _one(
        self, batches: Any, number: tf.Tensor, rates: tf.Tensor | None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """One step on all replicas of this process."""
        strategy = self._world.strategy
        if rates is not None:
            for each in self._optimizers:
                each.learning_rate = rates[number]
        losses, found = strategy.run(self._on_replica, (batches, number))
        mean = {
            name: tf.add_n(strategy.experimental_local_results(each)) / self._world.local
            for name, each in losses.items()
        }
        return mean, {name: strategy.experimental_local_results(each)[0] for name, each in found.items()}

    def _on_replica(self, batches: Any, number: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        found = {"lr": tf.convert_to_tensor(self._optimizers[0].learning_rate, tf.float32)}
        loss, outcome = self._step(tf.nest.map_structure(lambda each: each[number], batches))
        for name in ("overflowed", "loss_scale", "grad_norm"):
            value = getattr(outcome, name)
            if value is not None:
                found[name] = value
        return dict(loss) if isinstance(loss, Mapping) else {"loss": loss}, found
