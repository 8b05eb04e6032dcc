"""Optimizers of Keras that step as torch's do, so that a recipe is the same job in both."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class Momentum(keras.optimizers.SGD):
    """SGD that adds up gradients, as torch and TensorFlow 1 do, and multiplies their sum by the rate of the step. Keras
    adds up steps, so that while the rate rises or falls the earlier ones keep the rates that they had."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        before = self.momentums[self._get_variable_index(variable)]
        if before.dtype == "float32" and isinstance(gradient, tf.Tensor):
            # TensorFlow 1's own kernel does the same in one pass. Its GPUs may have none for bfloat16.
            weights = variable.value if isinstance(variable, keras.Variable) else variable
            tf.raw_ops.ResourceApplyMomentum(
                var=weights.handle,
                accum=before.value.handle,
                lr=tf.cast(learning_rate, tf.float32),
                grad=tf.cast(gradient, tf.float32),
                momentum=self.momentum,
            )
            return
        summed = before * self.momentum + tf.cast(gradient, before.dtype)
        self.assign(before, summed)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * summed)


class RMSprop(keras.optimizers.RMSprop):
    """With epsilon beside the root, as torch has it. Under the root, as in Keras 3, it outweighs small gradients."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        before = self._velocities[self._get_variable_index(variable)]
        gradient = tf.cast(gradient, before.dtype)
        squares = before * self.rho + tf.square(gradient) * (1 - self.rho)
        self.assign(before, squares)
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * gradient / (tf.sqrt(squares) + self.epsilon))
