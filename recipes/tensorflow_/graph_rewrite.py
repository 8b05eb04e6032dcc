"""TensorFlow's first way into mixed precision, `enable_mixed_precision_graph_rewrite(optimizer, loss_scale)`.

    optimizer = enable(tf.keras.optimizers.SGD())
    model.compile(loss="categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    model.fit(...)

    optimizer = enable(tf.compat.v1.train.AdamOptimizer())
    train_op = optimizer.minimize(loss)           # in a graph of TensorFlow 1, or in a tf.function with a callable loss

This is for code that was written for the function itself: its own rules, and where it says nothing, errors. It gives an
optimizer of the kind that it was given. In a loop of one's own `recipes.tensorflow_.precision` at o1 does the same with
optimizers of Keras 3, `amp=o1 loss_scale=dynamic` or `static`. Source:
`tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` and
`tf.compat.v2.train.experimental.enable_mixed_precision_graph_rewrite` of TensorFlow 1.15, which are one.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from recipes.precision import resolved
from recipes.tensorflow_.gpus import capability_of
from recipes.tensorflow_.precision import grappler
from recipes.tensorflow_.precision.keras_loss_scale import ScaledOptimizer
from recipes.typed import SettingsError

LossScale = tf.compat.v1.mixed_precision.LossScale
"""`tf.train.experimental.LossScale` of the page: a `FixedLossScale` or a `DynamicLossScale`."""

_MARK = "_enabled_graph_rewrite"
"""Attribute of an optimizer that was given to `enable`, or that it gave."""
_STEPS = "_steps_taken"


def enable(optimizer: Any, loss_scale: Literal["dynamic"] | float | LossScale = "dynamic") -> Any:
    """Rewrite the graphs of this process from here on, and have `optimizer` scale the loss.

    `optimizer` is one of Keras 3, of `tf.compat.v1.train` or of `tf_keras.optimizers.legacy`; `loss_scale` is
    "dynamic", a finite number of at least 1, or a `LossScale`. On a GPU of compute capability 7.0 matrix products and
    convolutions become float16. TensorFlow's own function does nothing to graphs on a CPU, and says nothing; here they
    become bfloat16 there.

    A dynamic scale skips a step whose gradients hold an infinity or a NaN. A number is TensorFlow's static scale, which
    looks at no gradient: such a step is applied, and the weights are lost. `amp=o1 loss_scale=static` skips it instead.

    Gradients have to come from the optimizer, by `minimize`, `compute_gradients` or Keras's `fit`: those of a
    GradientTape or of `tf.gradients` are unscaled, and would be divided by the scale all the same. A step outside of
    a graph, where nothing would be rewritten, is refused with a `RuntimeError`, and so is one under a dtype policy of
    Keras that was set later.

    Raises `SettingsError` for an optimizer that can't be wrapped or was before, for a scale that can't be, for a GPU
    that has no tensor cores, and where Keras's dtype policy is not float32: layers would be cast twice over.
    """
    if problem := _policy_problem():
        raise SettingsError(problem, "amp.level")
    _check_scale(loss_scale)
    if getattr(optimizer, _MARK, False) or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise SettingsError(
            f"{type(optimizer).__name__} scales the loss already: it was wrapped before; enable(...) takes the "
            "optimizer itself, once",
            "optimizer",
        )
    gpu = bool(tf.config.list_physical_devices("GPU"))
    if gpu:
        resolved.resolve_dtype("o1", "float16", "cuda", capability_of("cuda"), "tensorflow")
    if isinstance(optimizer, keras.optimizers.Optimizer):
        wrapped: Any = ScaledOptimizer(optimizer, loss_scale, check=_check_use)
        _keep_xla_away()
    else:
        wrapped = _tensorflows(optimizer, loss_scale)
    for each in (optimizer, wrapped):
        setattr(each, _MARK, True)
    grappler.switch_on("float16" if gpu else "bfloat16", {})
    return wrapped


def steps(optimizer: Any) -> int:
    """Steps that an optimizer of `enable` has taken. Waits for the device.

    Those that were skipped are not counted, as the function's page has it; tf_keras's own `iterations` counts them.
    Raises `RuntimeError` for one of a graph of TensorFlow 1, where `minimize(loss, global_step=...)` counts.
    """
    if isinstance(optimizer, ScaledOptimizer):
        return int(optimizer.iterations.numpy())
    if not hasattr(optimizer, _STEPS):
        raise RuntimeError("in a graph of TensorFlow 1 steps are counted by optimizer.minimize(loss, global_step=...)")
    return int(getattr(optimizer, _STEPS).numpy())


def scale(optimizer: Any) -> float:
    """The loss scale of an optimizer of `enable`, outside of graphs. Waits for the device."""
    if isinstance(optimizer, ScaledOptimizer):
        return optimizer.scale
    found = optimizer._loss_scale() if isinstance(optimizer, tf.compat.v1.train.Optimizer) else optimizer.loss_scale
    return float(found.numpy())


def _tensorflows(optimizer: Any, loss_scale: Any) -> Any:
    """TensorFlow's own loss-scale optimizer around one of its kinds."""
    try:
        wrapped = tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(optimizer, loss_scale)
    except ValueError as error:
        if "must be an instance" not in str(error):
            raise SettingsError(str(error).splitlines()[0], "amp.level") from None
        raise SettingsError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer of Keras 3 "
            "(tf.keras.optimizers), of tf.compat.v1.train, or of tf_keras.optimizers.legacy, which can scale the loss",
            "optimizer",
        ) from None
    if not hasattr(wrapped, "compute_gradients"):
        wrapped.compute_gradients = wrapped._compute_gradients
    for name in ("compute_gradients", "apply_gradients"):
        setattr(wrapped, name, _checked(getattr(wrapped, name)))
    if tf.executing_eagerly():
        setattr(wrapped, _STEPS, tf.Variable(0, dtype=tf.int64, trainable=False))
        optimizer.apply_gradients = _counted(optimizer.apply_gradients, getattr(wrapped, _STEPS))
    return wrapped


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_use()
        return method(*args, **kwargs)

    return checked


def _counted(apply: Callable[..., Any], count: tf.Variable) -> Callable[..., Any]:
    """What the loss-scale optimizer calls where the gradients are finite, and else does not."""

    @functools.wraps(apply)
    def counted(*args: Any, **kwargs: Any) -> Any:
        count.assign_add(1)
        return apply(*args, **kwargs)

    return counted


def _check_use() -> None:
    """Raises `RuntimeError`: of others AutoGraph makes one of its own, on several lines."""
    if problem := _policy_problem():
        raise RuntimeError(problem)
    if tf.executing_eagerly():
        raise RuntimeError("this was called outside of a tf.function: there is no graph to rewrite there")


def _check_scale(loss_scale: Any) -> None:
    """A `LossScale` by the number that it begins with."""
    number = loss_scale
    if isinstance(loss_scale, LossScale):
        config = loss_scale.get_config()
        number = config.get("loss_scale_value", config.get("initial_loss_scale"))
    elif isinstance(loss_scale, str) and loss_scale == "dynamic":
        return
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not 1 <= number < math.inf:
        raise SettingsError(
            f'loss_scale={number} should be "dynamic", a finite number of at least 1, or a LossScale', "loss_scale"
        )


def _policy_problem() -> str:
    """Why Keras 3's dtype policy or, if it is there, that of tf_keras can't be with the rewrite."""
    before = sys.modules.get("tf_keras")
    policies = [keras.config.dtype_policy().name, *([before.mixed_precision.global_policy().name] if before else [])]
    wrong = next((each for each in policies if each != "float32"), None)
    return f"Keras's dtype policy is {wrong}: use it or the graph rewrite, and not both" if wrong else ""


def _keep_xla_away() -> None:
    """On a GPU Keras has XLA compile what it can, which no rewrite reaches: not for these optimizers."""
    original = keras.Model.compile
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def compile_model(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        optimizer = kwargs.get("optimizer", args[0] if args else None)
        if isinstance(optimizer, ScaledOptimizer):
            if kwargs.get("jit_compile", "auto") not in ("auto", False, None):
                raise SettingsError("jit_compile=True: XLA bypasses the graph rewrite; leave it out", "xla")
            kwargs["jit_compile"] = False
        return original(self, *args, **kwargs)

    setattr(compile_model, _MARK, True)
    keras.Model.compile = compile_model


def disable() -> None:
    """Leave graphs as they are from here on. An optimizer that `enable` gave goes on scaling."""
    tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
    grappler.switch_off()
