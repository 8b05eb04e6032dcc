"""TensorFlow's first way into mixed precision, `enable_mixed_precision_graph_rewrite(optimizer, loss_scale)`.

    optimizer = enable(tf_keras.optimizers.legacy.SGD(0.1), loss_scale="dynamic")

    @tf.function                                  # outside of one there is no graph, and nothing would be rewritten
    def step():
        optimizer.minimize(lambda: loss_of(model), model.trainable_variables)

`recipes.tensorflow_.precision` at o1 does the same with optimizers of Keras 3, `amp=o1 loss_scale=dynamic` or `static`.
This is for code that was written for the function itself: its own rules, and where it says nothing, errors. Keras takes
the optimizer inside: `model.compile(optimizer=optimizer.inner)`, then `model.fit(...)`. Source:
`tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` and
`tf.compat.v2.train.experimental.enable_mixed_precision_graph_rewrite` of TensorFlow 1.15, which are one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from recipes import levels
from recipes.tensorflow_ import rewrite
from recipes.tensorflow_.gpus import capability_of
from recipes.typed import SettingsError

LossScale = tf.compat.v1.mixed_precision.LossScale
"""`tf.train.experimental.LossScale` of the page: a `FixedLossScale` or a `DynamicLossScale`."""


class Rewritten:
    """An optimizer that scales the loss, in a process whose graphs are rewritten. Made by `enable`.

    Gradients of a GradientTape or of `tf.gradients` are no business of its: they would be unscaled ones, and be divided
    by the scale all the same.
    """

    def __init__(self, optimizer: Any, inner: Any) -> None:
        self.inner = inner
        """TensorFlow's own loss-scale optimizer around the one that was given."""
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        optimizer.apply_gradients = self._counted(optimizer.apply_gradients)
        self._compat = isinstance(self.inner, tf.compat.v1.train.Optimizer)

    def _counted(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """What the loss-scale optimizer calls where the gradients are finite, and else does not."""

        @functools.wraps(apply)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._steps.assign_add(1)
            return apply(*args, **kwargs)

        return counted

    def minimize(self, loss: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]) -> Any:
        """One step, or none where a gradient is infinite or NaN. `loss` computes the loss, and is differentiated here.

        Raises `RuntimeError` outside of a `tf.function`.
        """
        return self.apply_gradients(self.compute_gradients(loss, variables))

    def compute_gradients(
        self, loss: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]
    ) -> list[tuple[tf.Tensor | None, tf.Variable]]:
        """The first half of `minimize`: gradients, unscaled again, with their variables."""
        if tf.executing_eagerly():
            raise RuntimeError("this was called outside of a tf.function: there is no graph to rewrite there")
        if self._compat:
            return list(self.inner.compute_gradients(loss, var_list=list(variables)))
        with tf.GradientTape() as tape:
            scaled = self.inner.get_scaled_loss(loss())
        gradients = self.inner.get_unscaled_gradients(tape.gradient(scaled, list(variables)))
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(self, found: Sequence[tuple[tf.Tensor | None, tf.Variable]]) -> Any:
        """The second half: the step, of what `compute_gradients` gave."""
        return self.inner.apply_gradients(found)

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


def enable(optimizer: Any, loss_scale: Literal["dynamic"] | float | LossScale = "dynamic") -> Rewritten:
    """Rewrite the graphs of this process from here on, and have `optimizer` scale the loss.

    `optimizer` is one of `tf.compat.v1.train` or of `tf_keras.optimizers.legacy`; `loss_scale` is "dynamic", a number
    of at least 1, or a `LossScale`. On a GPU of compute capability 7.0 matrix products and convolutions become float16.
    TensorFlow's own function does nothing to graphs on a CPU, and says nothing; here they become bfloat16 there.

    Raises `SettingsError` for an optimizer that TensorFlow can't wrap, for a scale that can't be, for a GPU that has no
    tensor cores, and where Keras's dtype policy is not float32: layers would be cast twice over.
    """
    for each in _policies():
        if each != "float32":
            raise SettingsError(
                f"Keras's dtype policy is {each}: use it or the graph rewrite, and not both", "amp.level"
            )
    number = isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool) and loss_scale >= 1
    if not (isinstance(loss_scale, LossScale) or number or (isinstance(loss_scale, str) and loss_scale == "dynamic")):
        raise SettingsError(
            f'loss_scale={loss_scale} should be "dynamic", a number of at least 1, or a LossScale', "loss_scale"
        )
    gpu = bool(tf.config.list_physical_devices("GPU"))
    if gpu:
        levels.resolve_dtype("o1", "float16", "cuda", capability_of("cuda"), "tensorflow")
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
    if not gpu:
        rewrite.switch_on("bfloat16", {})
    return Rewritten(optimizer, inner)


def _policies() -> list[str]:
    """Names of the dtype policies of Keras 3 and, where it is there, of tf_keras."""
    before = sys.modules.get("tf_keras")
    return [keras.config.dtype_policy().name, *([before.mixed_precision.global_policy().name] if before else [])]


def disable() -> None:
    """Leave graphs as they are from here on. The optimizer that `enable` gave goes on scaling."""
    tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
    rewrite.switch_off()
