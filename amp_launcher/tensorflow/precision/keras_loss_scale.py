"""Keras 3's loss-scale optimizer by TensorFlow 1's rules, for `amp_launcher.tensorflow.graph_rewrite`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

FLOOR = 1.0
"""The least dynamic scale of TensorFlow 1. Keras 3's has no floor. Source: `DynamicLossScale`."""
HANDLERS = ("_stateful_handle_finite_grads", "_stateful_handle_non_finite_grads")
"""Keras's methods that are overridden here; a test checks that they exist."""


class ScaledOptimizer(keras.optimizers.LossScaleOptimizer):
    """Scales the loss for an optimizer of Keras 3.

    `loss_scale` is "dynamic", a number, or TensorFlow's `LossScale`. Dynamic: a step with an infinity or a NaN in its
    gradients is skipped and divides the scale, and a number of good steps in a row multiplies it. A number: the scale
    stays, and every step is applied. `check` is called before the loss is scaled and before gradients are applied, and
    may raise.

    `apply` raises `RuntimeError` where no loss was scaled: gradients of a GradientTape would be divided by the scale.
    """

    def __init__(self, inner: keras.optimizers.Optimizer, loss_scale: Any, check: Callable[[], None]) -> None:
        config = loss_scale.get_config() if hasattr(loss_scale, "get_config") else {}
        number = loss_scale if isinstance(loss_scale, (int, float)) else config.get("loss_scale_value")
        first = config.get("initial_loss_scale", 2.0**15) if number is None else number
        super().__init__(
            inner, initial_scale=float(first), dynamic_growth_steps=int(config.get("increment_period", 2000))
        )
        self._fixed = number is not None
        self._multiplier = float(config.get("multiplier", 2.0))
        self._check = check
        self._scales = False
        """A loss was scaled."""

    @property
    def scale(self) -> float:
        """The loss scale. Waits for the device."""
        return float(self.dynamic_scale.numpy()) if self.built else float(self.initial_scale)

    def scale_loss(self, loss: Any) -> Any:
        self._check()
        self._scales = True
        return super().scale_loss(loss)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        self._check()
        if not self._scales:
            raise RuntimeError(
                "these gradients are of a loss that was not scaled, and would be divided by the loss scale: say "
                "tape.gradient(optimizer.scale_loss(loss), variables), or optimizer.minimize(lambda: loss, variables)"
            )
        super().apply(grads, trainable_variables)

    def minimize(self, loss: Callable[[], tf.Tensor], var_list: Sequence[Any]) -> None:
        """One step, in a `tf.function`. `loss` computes the loss."""
        with tf.GradientTape() as tape:
            scaled = self.scale_loss(loss())
        weights = [variable.value if isinstance(variable, keras.Variable) else variable for variable in var_list]
        self.apply_gradients(zip(tape.gradient(scaled, weights), var_list, strict=True))

    def check_finite(self, grads: Any) -> tf.Tensor:
        return tf.constant(True) if self._fixed else super().check_finite(grads)

    def _stateful_handle_finite_grads(self, grads: Any, trainable_variables: Any) -> None:
        scale = tf.identity(self.dynamic_scale.value)
        unscaled = [None if gradient is None else keras.ops.divide(gradient, scale) for gradient in grads]
        self.inner_optimizer.apply(unscaled, trainable_variables=trainable_variables)
        if self._fixed:
            return
        good, grown = self.step_counter + 1, scale * self._multiplier
        grows = good >= self.dynamic_growth_steps
        self.dynamic_scale.assign(tf.where(grows & tf.math.is_finite(grown), grown, scale))
        self.step_counter.assign(tf.where(grows, tf.zeros_like(good), good))

    def _stateful_handle_non_finite_grads(self) -> None:
        self.step_counter.assign(0)
        self.dynamic_scale.assign(tf.maximum(self.dynamic_scale / self._multiplier, FLOOR))
