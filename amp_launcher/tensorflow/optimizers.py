"""Optimizers of Keras that step as torch's do, so that a recipe is the same job in both."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class Momentum(keras.optimizers.SGD):
    """SGD with momentum that sums gradients and multiplies the sum by the current rate, as in torch and TensorFlow 1.

    Keras sums steps, so that earlier gradients keep the rates of their time.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        momentum = self.momentums[self._get_variable_index(variable)]
        if momentum.dtype == "float32" and isinstance(gradient, tf.Tensor):
            # TensorFlow 1's kernel does the same in one pass; there may be none for bfloat16 on a GPU.
            weights = variable.value if isinstance(variable, keras.Variable) else variable
            tf.raw_ops.ResourceApplyMomentum(
                var=weights.handle,
                accum=momentum.value.handle,
                lr=tf.cast(learning_rate, tf.float32),
                grad=tf.cast(gradient, tf.float32),
                momentum=self.momentum,
            )
            return
        summed = momentum * self.momentum + tf.cast(gradient, momentum.dtype)
        self.assign(momentum, summed)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * summed)


class RMSprop(keras.optimizers.RMSprop):
    """With epsilon outside of the root, as in torch. Inside, as in Keras 3, it outweighs small gradients."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        velocity = self._velocities[self._get_variable_index(variable)]
        gradient = tf.cast(gradient, velocity.dtype)
        squares = velocity * self.rho + tf.square(gradient) * (1 - self.rho)
        self.assign(velocity, squares)
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * gradient / (tf.sqrt(squares) + self.epsilon))
