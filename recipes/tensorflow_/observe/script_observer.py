"""Observes a user's script in TensorFlow from its start to its end, as one step.

Models and optimizers become known as the script makes them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from recipes.precision.observation import Guard
from recipes.tensorflow_.observe.hooks import after, naming_kerass_steps
from recipes.tensorflow_.observe.observer import NORMS, Applied, PrecisionObserver, stepped_by
from recipes.tensorflow_.precision.mechanisms import KEPT
from recipes.trainer.world import rank_and_size

WHOLE_RUN = 1
"""The number under which the one observation of a script goes."""
COUNTS = ("iteration", "iter", "global_step")
"""What the variables are called in which optimizers of tf_keras count their steps, legacy ones, and TensorFlow 1's."""
_CHOSEN = "_script_chose_float32"
"""Attribute of a layer whose dtype the script set to float32."""


class ScriptObserver(PrecisionObserver):
    """Observes a whole script."""

    def __init__(self, precision: Applied, *, scaled_by_keras: bool) -> None:
        self.scaled_by_keras = scaled_by_keras
        """Keras alone is there to scale the loss: an optimizer that it doesn't scale for is a problem."""
        self._made: list[keras.Model] = []
        self._built: list[keras.Optimizer] = []
        self._scaled: set[int] = set()
        self._chosen = False
        self._variables: list[weakref.ref[tf.Variable]] = []
        """Those that can be trained, whoever made them."""
        self._counts: list[tf.Variable] = []
        """Those in which an optimizer that isn't of Keras 3 counts its steps."""
        super().__init__(self._made, precision)

    @property
    def precision(self) -> Applied:
        return self._precision

    @precision.setter
    def precision(self, precision: Applied) -> None:
        self._precision = precision
        self.scaled_by_keras = False  # the script has made its own, and scales the loss by it

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The script runs in here."""
        with contextlib.ExitStack() as stack:
            with self._guard():
                stack.enter_context(_once_begun(self._guarded(context.enable_graph_collection)))
                stack.enter_context(after(keras.Model, "__init__", self._made.append))
                stack.enter_context(after(keras.Layer, "__init__", self._guarded(self._on_layer)))
                stack.enter_context(_in_scope_of_its_choice(self._guard))
                stack.enter_context(naming_kerass_steps())
                stack.enter_context(after(keras.optimizers.Optimizer, "build", self._guarded(self._on_build)))
                scaled = self._guarded(self._on_scaling)
                stack.enter_context(after(keras.optimizers.LossScaleOptimizer, "__init__", scaled))
                stack.enter_context(tf.variable_creator_scope(self._on_variable))
            stack.enter_context(self.step(WHOLE_RUN))
            yield

    def steps(self) -> int:
        """Optimizer steps that were applied: the most of any optimizer."""
        counts = [*(each.iterations for each in self._built), *self._counts]
        return max((int(each.numpy()) for each in counts), default=0)

    def counts(self) -> bool:
        """Whether anything counts the script's steps: a loop without an optimizer doesn't, nor need TensorFlow 1's."""
        return bool(self._built or self._counts)

    def _begin_to_collect(self) -> None:
        """Not yet: strategies over several processes, memory growth and the like are the script's to choose, and can't
        be chosen any more once TensorFlow has its devices."""

    def _rank_and_size(self) -> tuple[int, int]:
        return rank_and_size("tensorflow")

    def _on_layer(self, layer: keras.Layer) -> None:
        """A layer made in float32 while the policy is another was given its dtype by the script: `dtype="float32"`, as
        Keras advises for a model's last one. Where the policy itself is float32, nobody chose anything."""
        if layer.compute_dtype == "float32" and keras.config.dtype_policy().compute_dtype != "float32":
            setattr(layer, _CHOSEN, True)
            self._chosen = True

    def _kept_scope(self) -> str | None:
        return KEPT if self._chosen else super()._kept_scope()

    def _on_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        made = next_creator(**kwargs)
        with self._guard():
            if made.trainable and made.dtype.is_floating:
                self._variables.append(weakref.ref(made))
            if not made.trainable and made.dtype == tf.int64 and made.name.split("/")[-1].split(":")[0] in COUNTS:
                self._counts.append(made)
        return made

    def _guarded(self, told: Callable[..., Any]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            with self._guard():
                told(*given)

        return call

    def _on_build(self, optimizer: keras.Optimizer) -> None:
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer not in self._built:
            self._built.append(optimizer)

    def _on_scaling(self, optimizer: keras.optimizers.LossScaleOptimizer) -> None:
        self._scaled.add(id(optimizer.inner_optimizer))

    def _report(self, executed: Counter[str], eager: Counter[str]) -> dict[str, Any]:
        # Those that the script gave to its own precision are among them already.
        known = self._precision.optimizers
        known += [each for each in self._built if each not in known]
        report = super()._report(executed, eager)
        if self.scaled_by_keras:
            bare = [type(each).__name__ for each in self._built if id(each) not in self._scaled]
            if bare:
                problem = f"nothing scaled the loss of optimizer {bare[0]}, and small float16 gradients vanish"
                report["problems"] = [*report["problems"], problem]
        return report

    def _parameters(self) -> list[dict[str, Any]]:
        """Of what optimizers step, each layer once: a model may be part of another, or have been made for nothing.

        Where Keras 3 has no part in it, as in scripts for tf_keras or for TensorFlow alone, of what can be trained.
        """
        layers = {id(layer): layer for model in self._made for layer in model._flatten_layers()}
        stepped = {id(each) for each in stepped_by(self._precision.optimizers)}
        elements: Counter[tuple[str, str]] = Counter()
        for layer in layers.values():
            kept = "kept" if getattr(layer, _CHOSEN, False) else "other"
            group = "norm" if type(layer).__name__ in NORMS else kept
            for variable in (each for each in layer._trainable_variables if id(each) in stepped):
                elements[group, variable.value.dtype.name] += int(variable.value.shape.num_elements())
        for variable in (
            [] if stepped else [each for each in (found() for found in self._variables) if each is not None]
        ):
            elements["other", variable.dtype.name] += int(variable.shape.num_elements())
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


@contextlib.contextmanager
def _in_scope_of_its_choice(guard: Guard) -> Iterator[None]:
    """Name the operations of layers that the script wants in float32 as those of `amp.keep_fp32` are named.

    A layer that holds others in half precision isn't named: theirs would be too.
    """
    original = keras.Layer.__call__

    def call(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        float32 = False
        with guard():
            float32 = getattr(self, _CHOSEN, False) and all(
                each.compute_dtype == "float32" for each in self._flatten_layers()
            )
        with tf.name_scope(KEPT) if float32 else contextlib.nullcontext():
            return original(self, *args, **kwargs)

    keras.Layer.__call__ = call
    try:
        yield
    finally:
        keras.Layer.__call__ = original


@contextlib.contextmanager
def _once_begun(told: Callable[[], None]) -> Iterator[None]:
    """Have `told` called as soon as TensorFlow's devices are there: at once where they are."""
    if context.context()._initialized:
        told()
        yield
        return
    original = context.Context.ensure_initialized

    def begin(self: context.Context) -> None:
        original(self)
        if context.Context.ensure_initialized is begin:
            context.Context.ensure_initialized = original
            told()

    context.Context.ensure_initialized = begin
    try:
        yield
    finally:
        context.Context.ensure_initialized = original
