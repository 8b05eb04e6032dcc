"""A precision level in a TensorFlow training loop, which calls the same methods at every level.

precision = Precision.of(settings.amp, settings.loss_scale, "cpu")
model = precision.cast(make_model)                       # a function that makes the model; in the strategy's scope
optimizer = precision.optimizer(model, keras.optimizers.Adam())

@tf.function                                             # o1 rewrites graphs: it has no effect outside of one
def step(inputs, labels):
    with precision.forward() as tape:
        logits = precision.output(model(precision.input(inputs), training=True))
        loss = cross_entropy(labels, logits)             # loss / k where k micro-batches make a step
    gradients = precision.backward(tape, loss, optimizer)
    outcome = precision.step(optimizer, gradients, clip=1.0)   # average over replicas, unscale, clip, skip on overflow
    precision.update()                                   # once an iteration, however many optimizers
    return loss, outcome
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.loop.strategy import Strategy
from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.scalers import ScalePerOptimizer
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.tensorflow.hardware import capability_of, kind_of
from amp_launcher.tensorflow.precision import grappler, replicas
from amp_launcher.tensorflow.precision.gradients import Gradient, add, map_gradients, map_values, sum_rows, values
from amp_launcher.tensorflow.precision.loss_scale import LossScaler, NoScale, make_scaler


class Precision(Strategy):
    """A precision level. This class is o0, float32; a subclass carries out each other level."""

    framework = "tensorflow"
    _capability_of, _kind_of = staticmethod(capability_of), staticmethod(kind_of)
    policy = "float32"
    """Keras's name for the dtypes of layers and variables."""

    def __init__(self, resolved: ResolvedPrecision) -> None:
        super().__init__(resolved)
        self.kept: tuple[str, ...] = ()
        """Names of the layers that `amp.keep_fp32` keeps in float32, once a model was cast."""
        self._strategy = tf.distribute.get_strategy()
        self._scaler: NoScale | LossScaler | ScalePerOptimizer = make_scaler(resolved.loss_scale)
        self._optimizers: list[keras.Optimizer] = []

    @classmethod
    def _switch(cls, resolved: ResolvedPrecision) -> None:
        """TF32 and the graph rewrites: here none, also where an earlier level left them on."""
        tf.config.experimental.enable_tensor_float_32_execution(resolved.tf32)
        grappler.switch_off()

    def cast(self, make: Callable[[], keras.Model]) -> keras.Model:
        """Call `make`, which returns a model with its variables built, and return that model in the level's dtypes.

        Keras chooses dtypes as it makes layers, so this takes a function and not a model. Raises `SettingsError` for
        a pattern of `amp.keep_fp32` that matches no layer, and `RuntimeError` for a model without variables, for a
        layer with a dtype of its own, and in the scope of another strategy than this precision was made in.
        """
        self._check_strategy("precision.cast(...)", tf.distribute.get_strategy())
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            model = self._make(make)
        finally:
            keras.config.set_dtype_policy(before)
        if not model.trainable_variables:
            raise RuntimeError("precision.cast(make): the model that make() returns has no variables yet; build it")
        for layer in (layer for layer in model._flatten_layers() if layer.variables):
            if layer.dtype_policy.name != self.policy and not isinstance(layer, keras.Model):
                raise RuntimeError(
                    f"layer {layer.name} has dtype policy {layer.dtype_policy.name}, and amp={self.level} gives it "
                    f"{self.policy}: make layers in the function given to precision.cast, without a dtype of their own"
                )
        self._keep_float32(model)
        return model

    def _check_strategy(self, call: str, strategy: tf.distribute.Strategy) -> None:
        """Variables made outside of a strategy's scope are shared by its replicas, and each would update them."""
        if strategy is not self._strategy:
            raise RuntimeError(
                f"{call} runs under {_name(strategy)}, but this precision was made under {_name(self._strategy)}: make "
                "precision, model and optimizer in one strategy's scope, as in `with strategy.scope(): precision = "
                "Precision.from_env(); model = precision.cast(...)`"
            )

    def _make(self, make: Callable[[], keras.Model]) -> keras.Model:
        return make()

    def _keep_float32(self, model: keras.Model) -> None:
        pass

    def optimizer(self, model: keras.Model | Sequence[Any], optimizer: keras.Optimizer) -> keras.Optimizer:
        """Prepare `optimizer` to step the model's trainable variables, and return it. Once for each optimizer.

        `model` is a model, or a sequence of variables to step only these. Raises `RuntimeError` for an optimizer that
        scales the loss itself, and in the scope of another strategy than this precision was made in.
        """
        self._check_strategy("precision.optimizer(...)", tf.distribute.get_strategy())
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor is not None:
            raise RuntimeError("this optimizer scales the loss itself; give precision.optimizer its inner optimizer")
        optimizer.build(list(model.trainable_variables if isinstance(model, keras.Model) else model))
        replicas.disable_reduction(optimizer)
        self._optimizers.append(optimizer)
        self._scaler.add(optimizer)
        return optimizer

    @contextlib.contextmanager
    def forward(self, after: Sequence[Gradient | None] | None = None) -> Iterator[tf.GradientTape]:
        """A context for everything from the model's inputs to the loss, but not for backward and step.

        `after` is the list of gradients of the previous micro-batch. This one starts when they are computed, so that
        the activations of one micro-batch are in memory at a time.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            self._check_strategy("a step", strategy)
        before = [values(gradient) for gradient in after or () if gradient is not None]
        with tf.control_dependencies(before), tf.GradientTape(persistent=True) as tape:
            yield tape

    def input(self, tensor: Any) -> Any:
        """A model's inputs, a tensor or a structure of tensors, in the level's dtype."""
        return tensor

    def output(self, tensor: Any) -> Any:
        """A model's outputs, a tensor or a structure of tensors, in float32, as losses and metrics need them."""
        return map_floats(lambda part: tf.cast(part, tf.float32), tensor)

    def backward(
        self,
        tape: tf.GradientTape,
        loss: tf.Tensor,
        optimizer: keras.Optimizer,
        before: Sequence[Gradient | None] | None = None,
    ) -> list[Gradient | None]:
        """Gradients of the scaled loss with respect to the optimizer's variables, added to `before`.

        `loss` is a float32 scalar, already divided by the number of micro-batches; `before` is what the previous
        micro-batch's call returned. The gradient of an embedding is `tf.IndexedSlices`, or dense under XLA.
        """
        if loss.dtype != tf.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype.name} and must be float32: compute it from precision.output(...), as in "
                "loss = cross_entropy(labels, precision.output(model(precision.input(inputs))))"
            )
        variables = [variable.value for variable in optimizer._trainable_variables]
        scale = self._scaler.of(optimizer).current()
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        if self.resolved.xla:  # needs static shapes, and an IndexedSlices has as many rows as were looked up
            gradients = map_gradients(tf.convert_to_tensor, gradients)
        gradients = self._after_backward(gradients)
        return gradients if before is None else [add(*pair) for pair in zip(before, gradients, strict=True)]

    def _after_backward(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients as they are summed, unscaled and applied."""
        return gradients

    def step(
        self, optimizer: keras.Optimizer, gradients: Sequence[Gradient | None], clip: float | None = None
    ) -> StepOutcome:
        """Average the gradients over the replicas, unscale them, clip their norm, and step unless they overflowed."""
        if optimizer not in self._optimizers:
            raise RuntimeError("precision.step(optimizer, ...) comes after precision.optimizer(model, optimizer)")
        scaler = self._scaler.of(optimizer)
        scale = scaler.current()
        gradients = scaler.unscale(map_gradients(sum_rows, replicas.mean(gradients)))
        arrays = [values(gradient) for gradient in gradients if gradient is not None]
        overflowed = None
        if scale is not None:
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(array)) for array in arrays])
            overflowed = tf.logical_not(finite)
            scaler.record(overflowed)
        norm = None
        if clip is not None:
            norm = tf.linalg.global_norm([tf.cast(array, tf.float32) for array in arrays])
            # As torch clips: https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
            factor = tf.minimum(1.0, clip / (norm + 1e-6))
            gradients = map_values(lambda part: part * tf.cast(factor, part.dtype), gradients)
        replicas.apply(optimizer, gradients, unless=overflowed)
        return StepOutcome(overflowed=overflowed, loss_scale=scale, grad_norm=norm)

    def update(self) -> None:
        """Move the loss scale. Once an iteration, after the last optimizer's step."""
        self._scaler.update()

    @property
    def scale(self) -> float | None:
        """The loss scale, the lowest of several, None where there is none. Waits for the device."""
        return self._scaler.value

    @property
    def skipped_total(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return self._scaler.skipped

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its counts: the state that is in no variable of model and optimizers."""
        return {"level": self.level, "dtype": self.dtype, "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises `SettingsError` for one of another level, dtype or loss scale."""
        check_saved_level(state, self.level, self.dtype)
        self._scaler.load_state_dict(state["scaler"])


def map_floats(change: Callable[[tf.Tensor], tf.Tensor], tensors: Any) -> Any:
    """Apply `change` to every floating-point tensor of a structure, and leave integers as they are."""
    tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
    return tf.nest.map_structure(lambda tensor: change(tensor) if tensor.dtype.is_floating else tensor, tensors)


def _name(strategy: tf.distribute.Strategy) -> str:
    return type(strategy).__name__.lstrip("_")  # outside of any scope: DefaultDistributionStrategy
