"""What Keras's own `compile`, `fit`, `evaluate` and `predict` need of a prepared model and its optimizers."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.tensorflow.precision.base import Mechanism


class Steps:
    """The steps of a prepared optimizer. `apply` is Keras's own.

    The optimizer's `scale_loss` and `apply`, which `fit` calls, are replaced: the loss is scaled by the mode's rule,
    and the gradients are averaged, unscaled and checked as `precision.step` does it.
    """

    def __init__(self, mechanism: Mechanism, optimizer: keras.Optimizer) -> None:
        self.apply: Callable[..., Any] = optimizer.apply
        self.dense = False
        """XLA compiles what `fit` runs."""
        self._mechanism = mechanism
        self._optimizer = optimizer
        self._here = threading.local()
        """Whether a loss was scaled and not stepped by yet. Each replica is a thread."""
        optimizer.scale_loss = self._scale_loss
        optimizer.apply = self._step

    def _scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        self._here.scaled = True
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:  # fit has divided the loss by their number, and the step takes the mean
            loss = loss * tf.cast(replicas, loss.dtype)
        scale = self._mechanism.scaler(self._optimizer).current()
        return loss if scale is None else tf.cast(loss, tf.float32) * scale

    def _step(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        if not getattr(self._here, "scaled", False):
            raise RuntimeError(
                "the gradients of this step are of a loss that was not scaled: call precision.backward(loss) and "
                "precision.step(optimizer) for tape.gradient and optimizer.apply, or loss = optimizer.scale_loss(loss) "
                "before tape.gradient in a train_step of your own"
            )
        self._here.scaled = False
        gradients = self._mechanism.received(list(grads), self.dense)
        apply = functools.partial(self.apply, trainable_variables=trainable_variables)
        self._mechanism.step_all([(self._optimizer, gradients, apply)])
        self._mechanism.update()


def cast_calls(model: keras.Model, mechanism: Mechanism) -> None:
    """Have the model cast what it takes and gives, whoever calls it."""
    call = model.call

    @functools.wraps(call)
    def cast_call(*arguments: Any, **keywords: Any) -> Any:
        return mechanism.output(call(*mechanism.input(arguments), **mechanism.input(keywords)))

    model.call = cast_call


def prepare_compile(model: keras.Model, mechanism: Mechanism, steps_of: Callable[[Any], Steps | None]) -> None:
    """Have `model.compile` refuse an optimizer that isn't prepared, and leave the loss scale to the one that is."""
    compile = model.compile
    signature = inspect.signature(compile)

    @functools.wraps(compile)
    def compile_prepared(*arguments: Any, **keywords: Any) -> None:
        if "auto_scale_loss" in signature.parameters:
            keywords["auto_scale_loss"] = False
        asked = signature.bind(*arguments, **keywords).arguments
        if mechanism.level == "o1":
            _refuse_graphless(asked)
            if "jit_compile" in signature.parameters:
                keywords["jit_compile"] = False  # XLA, which Keras uses on a GPU where it can, bypasses the rewrite
        compile(*arguments, **keywords)
        steps = steps_of(model.optimizer)
        if "optimizer" in signature.parameters and steps is None:
            model.compiled = False
            raise RuntimeError(
                "model.compile takes the optimizer that precision.prepare(make_model, optimizer) returned, and was "
                f"given {asked.get('optimizer', 'none')!r}"
            )
        if steps is not None:
            steps.dense = bool(model.jit_compile)

    model.compile = compile_prepared


def _refuse_graphless(asked: dict[str, Any]) -> None:
    for name, allowed in {"run_eagerly": (False, None), "jit_compile": ("auto", False, None)}.items():
        if asked.get(name) not in allowed:
            raise RuntimeError(f"o1 rewrites graphs, which {name}={asked[name]} bypasses: leave it out")
