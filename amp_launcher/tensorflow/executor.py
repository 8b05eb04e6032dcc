"""Optimizer steps as graphs, one or several in an execution."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy
import tensorflow as tf

from amp_launcher.loop.protocols import Executed
from amp_launcher.loop.steps import Load, Schedule, Steps
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.settings import Settings
from amp_launcher.tensorflow import xla
from amp_launcher.tensorflow.devices import World
from amp_launcher.tensorflow.observe.graphs import STEPS
from amp_launcher.tensorflow.observe.observer import PrecisionObserver

Loss: TypeAlias = tf.Tensor | Mapping[str, tf.Tensor]
"""A scalar, the mean over one replica's samples; or several by name, whose sum is the step's loss."""
Step = Callable[[Any], tuple[Loss, StepOutcome]]
"""From one replica's sample indices [micro-batches, samples in each], or `load`'s arrays, to loss and outcome."""


class GraphSteps(Steps):
    """`amp_launcher.loop.protocols.Executor` in TensorFlow.

    A graph is traced for each number of steps in an execution. Several steps are iterations of a loop in the graph, so
    that Python and the device synchronise once for all of them.
    """

    _world: World

    def __init__(
        self,
        step: Step,
        optimizers: Sequence[keras.Optimizer],
        load: Load | None,
        schedule: Schedule | None,
        settings: Settings,
        world: World,
        observer: PrecisionObserver,
    ) -> None:
        super().__init__(settings, world, load, schedule)
        self.at_once = settings.steps_per_execution
        self._step = step
        self._optimizers = optimizers
        self._observer = observer
        self._graphs: dict[int, Any] = {}
        """By number of steps. They are called directly, since a tf.function searches its graphs in every call."""
        compiled = xla.compiles_whole_steps(settings.xla, settings.amp.level, world.devices)
        self._execute = tf.function(self._steps, autograph=False, jit_compile=compiled)

    def execute(self, shares: numpy.ndarray, first: int, count: int) -> Executed:
        batches, waited = self._loaded(shares, first, count)
        stacked = tf.nest.map_structure(lambda *arrays: numpy.stack(arrays) if count > 1 else arrays[0][None], *batches)
        rates = self._rates(shares, first, count)
        arguments = self._distributed(stacked), None if rates is None else tf.constant(rates, tf.float32)
        new = count not in self._graphs
        if new:
            self._graphs[count] = self._execute.get_concrete_function(*arguments)
        with self._observer.learning() if new else contextlib.nullcontext():
            losses, values = self._graphs[count](*arguments)
        loss = losses["loss"] if list(losses) == ["loss"] else losses
        outcome = StepOutcome(
            overflowed=values.get("overflowed"), loss_scale=values.get("loss_scale"), grad_norm=values.get("grad_norm")
        )
        return Executed(loss=loss, lr=values["lr"], outcome=outcome, waited=waited, prepared=new)

    def _distributed(self, batches: Any) -> Any:
        """Each replica's part of the arrays, on its device."""
        world = self._world
        if world.devices == 1:
            return tf.nest.map_structure(tf.constant, batches)

        def part(context: tf.distribute.distribute_lib.ValueContext) -> Any:
            index = context.replica_id_in_sync_group % world.local
            return tf.nest.map_structure(
                lambda array: tf.constant(numpy.split(array, world.local, axis=2)[index]), batches
            )

        return world.strategy.experimental_distribute_values_from_function(part)

    def _steps(self, batches: Any, rates: tf.Tensor | None) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The losses and other values of the steps, all of shape [steps]. Traced."""
        local = self._world.strategy.experimental_local_results(batches)
        count = tf.nest.flatten(local[0])[0].shape[0]
        first = self._one(batches, tf.constant(0), rates)  # outside of the loop: it defines the values of a step
        if count == 1:
            return tf.nest.map_structure(lambda value: value[None], first)
        arrays = tf.nest.map_structure(lambda value: tf.TensorArray(value.dtype, count).write(0, value), first)

        def body(number: tf.Tensor, arrays: Any) -> tuple[tf.Tensor, Any]:
            values = self._one(batches, number, rates)
            return number + 1, tf.nest.map_structure(lambda array, value: array.write(number, value), arrays, values)

        _, arrays = tf.while_loop(
            lambda number, arrays: number < count, body, (tf.constant(1), arrays), parallel_iterations=1, name=STEPS
        )
        return tf.nest.map_structure(lambda array: array.stack(), arrays)

    def _one(
        self, batches: Any, number: tf.Tensor, rates: tf.Tensor | None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """One step on all replicas of this process."""
        strategy = self._world.strategy
        if rates is not None:
            for optimizer in self._optimizers:
                optimizer.learning_rate = rates[number]
        losses, values = strategy.run(self._on_replica, (batches, number))
        local = strategy.experimental_local_results
        mean = {name: tf.add_n(local(loss)) / self._world.local for name, loss in losses.items()}
        return mean, {name: local(value)[0] for name, value in values.items()}

    def _on_replica(self, batches: Any, number: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        values = {"lr": tf.convert_to_tensor(self._optimizers[0].learning_rate, tf.float32)}
        loss, outcome = self._step(tf.nest.map_structure(lambda array: array[number], batches))
        for name in ("overflowed", "loss_scale", "grad_norm"):
            value = getattr(outcome, name)
            if value is not None:
                values[name] = value
        return dict(loss) if isinstance(loss, Mapping) else {"loss": loss}, values
