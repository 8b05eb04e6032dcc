"""TensorFlow's first way into mixed precision, `enable_mixed_precision_graph_rewrite(optimizer, loss_scale)`.

    optimizer = enable(tf_keras.optimizers.legacy.SGD(0.1), loss_scale="dynamic")

    @tf.function                                  # outside of one there is no graph, and nothing would be rewritten
    def step():
        optimizer.minimize(lambda: loss_of(model), model.trainable_variables)

`recipes.tensorflow_.precision` at o1 does the same with optimizers of Keras 3, `amp=o1 loss_scale=dynamic` or `static`.
This is for code that was written for the function itself: its own rules, and where it says nothing, errors. Source:
`tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` and
`tf.compat.v2.train.experimental.enable_mixed_precision_graph_rewrite` of TensorFlow 1.15, which are one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from recipes.tensorflow_ import rewrite
from recipes.typed import SettingsError


class Rewritten:
    """An optimizer that scales the loss, in a process whose graphs are rewritten. Made by `enable`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        """TensorFlow's own loss-scale optimizer around the one that was given."""
        self._compat = isinstance(inner, tf.compat.v1.train.Optimizer)
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def minimize(self, loss: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]) -> Any:
        """One step, or none where a gradient is infinite or NaN.

        `loss` computes the loss, and is differentiated here: gradients of a GradientTape of one's own would be unscaled
        ones, and be divided by the scale all the same. Raises `RuntimeError` outside of a `tf.function`.
        """
        if tf.executing_eagerly():
            raise RuntimeError("minimize() was called outside of a tf.function: there is no graph to rewrite there")
        if self._compat:
            return self.inner.minimize(loss, var_list=list(variables), global_step=self._steps)
        with tf.GradientTape() as tape:
            scaled = self.inner.get_scaled_loss(loss())
        gradients = self.inner.get_unscaled_gradients(tape.gradient(scaled, list(variables)))
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in gradients if each is not None])
        self._steps.assign_add(tf.cast(finite, tf.int64))
        return self.inner.apply_gradients(zip(gradients, variables, strict=True))

    @property
    def steps(self) -> int:
        """Steps that were taken. Waits for the device.

        Those that were skipped are not counted, as the function's page has it; tf_keras's own `iterations` counts them.
        """
        return int(self._steps.numpy())

    @property
    def scale(self) -> float:
        """The loss scale. Waits for the device."""
        found = self.inner._loss_scale() if self._compat else self.inner.loss_scale
        return float(found.numpy())


def enable(optimizer: Any, loss_scale: Literal["dynamic"] | float = "dynamic") -> Rewritten:
    """Rewrite the graphs of this process from here on, and have `optimizer` scale the loss.

    `optimizer` is one of `tf.compat.v1.train` or of `tf_keras.optimizers.legacy`; `loss_scale` is "dynamic" or a number
    of at least 1. On a GPU of compute capability 7.0 matrix products and convolutions become float16. TensorFlow's own
    function does nothing to graphs on a CPU, and says nothing; here they become bfloat16 there.

    Raises `SettingsError` for an optimizer that TensorFlow can't wrap, for a scale that can't be, and where a mixed
    precision policy of Keras is set: layers would be cast twice over.
    """
    policy = keras.config.dtype_policy()
    if policy.compute_dtype != policy.variable_dtype:
        raise SettingsError(
            f"Keras's dtype policy is {policy.name}: use it or the graph rewrite, and not both", "amp.level"
        )
    if loss_scale != "dynamic" and (isinstance(loss_scale, (str, bool)) or not loss_scale >= 1):
        raise SettingsError(f'loss_scale={loss_scale} should be "dynamic" or a number of at least 1', "loss_scale")
    try:
        inner = tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(optimizer, loss_scale)
    except ValueError as error:
        if "must be an instance" not in str(error):
            raise SettingsError(str(error).splitlines()[0], "amp.level") from None
        raise SettingsError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer of tf.compat.v1.train or "
            "tf_keras.optimizers.legacy, the only ones that the graph rewrite's function wraps; for one of Keras 3 say "
            "amp=o1",
            "optimizer",
        ) from None
    if not tf.config.list_physical_devices("GPU"):
        rewrite.switch_on("bfloat16", (), ())
    return Rewritten(inner)


def disable() -> None:
    """Leave graphs as they are from here on. The optimizer that `enable` gave goes on scaling."""
    tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
    rewrite.switch_off()
