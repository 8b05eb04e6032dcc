"""TensorFlow 1's function for mixed precision, `enable_mixed_precision_graph_rewrite(optimizer, loss_scale)`.

    optimizer = enable(tf.keras.optimizers.SGD())
    model.compile(loss="categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    model.fit(...)

    optimizer = enable(tf.compat.v1.train.AdamOptimizer())
    train_op = optimizer.minimize(loss)           # in a graph of TensorFlow 1, or in a tf.function with a callable loss

For code that was written for that function. It follows the function's rules, and raises errors where the function fails
silently; it returns an optimizer of the kind that it got. In a loop of your own, `tensorflow.precision` at o1
does the same with Keras 3's optimizers (`amp=o1 loss_scale=dynamic` or `static`). Sources, with one implementation:
`tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` and
`tf.compat.v2.train.experimental.enable_mixed_precision_graph_rewrite` of TensorFlow 1.15.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import keras
import tensorflow as tf

from amp_launcher.precision import resolved
from amp_launcher.tensorflow.hardware import capability_of
from amp_launcher.tensorflow.precision import grappler
from amp_launcher.tensorflow.precision.keras_loss_scale import ScaledOptimizer
from amp_launcher.typed import SettingsError

LossScale: TypeAlias = tf.compat.v1.mixed_precision.LossScale
"""`tf.train.experimental.LossScale` of the page: a `FixedLossScale` or a `DynamicLossScale`."""

_MARK = "_enabled_graph_rewrite"
"""Attribute of optimizers that `enable` got or returned."""
_STEPS = "_steps_taken"


def enable(optimizer: Any, loss_scale: Literal["dynamic"] | float | LossScale = "dynamic") -> Any:
    """Rewrite all later graphs of this process, and return an optimizer that scales the loss.

    `optimizer` is one of Keras 3, of `tf.compat.v1.train` or of `tf_keras.optimizers.legacy`; `loss_scale` is
    "dynamic", a finite number of at least 1, or a `LossScale`. On a GPU of compute capability 7.0 or higher, matrix
    products and convolutions become float16. On a CPU they become bfloat16, where TensorFlow's function silently
    rewrites nothing.

    A dynamic scale skips a step with an infinity or a NaN in its gradients. A number is TensorFlow's static scale,
    which doesn't check gradients: such a step is applied, and the weights become NaN. `amp=o1 loss_scale=static` skips
    it instead.

    Gradients must come from the optimizer, by `minimize`, `compute_gradients` or Keras's `fit`: those of a
    GradientTape are of an unscaled loss, unless it is `optimizer.scale_loss(loss)`: a Keras optimizer that never scaled
    a loss raises `RuntimeError` rather than divide them by the scale. A step outside of a graph,
    where nothing would be rewritten, raises `RuntimeError`, and so does a step under a dtype policy of Keras that was
    set later.

    Raises `SettingsError` for an optimizer that can't be wrapped or is wrapped already, for an invalid scale, for a GPU
    without tensor cores, and where Keras's dtype policy is not float32, since layers would be cast twice.
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
        _switch_xla_off()
    else:
        wrapped = _tensorflows(optimizer, loss_scale)
    for marked in (optimizer, wrapped):
        setattr(marked, _MARK, True)
    grappler.switch_on("float16" if gpu else "bfloat16", {})
    return wrapped


def steps(optimizer: Any) -> int:
    """Steps that an optimizer of `enable` has applied. Waits for the device.

    Skipped steps are not counted, as the function's page says; tf_keras's own `iterations` counts them. Raises
    `RuntimeError` in a graph of TensorFlow 1, where `minimize(loss, global_step=...)` counts.
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
    from_tensorflow_1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    return float((optimizer._loss_scale() if from_tensorflow_1 else optimizer.loss_scale).numpy())


def _tensorflows(optimizer: Any, loss_scale: Any) -> Any:
    """TensorFlow's own loss-scale optimizer around one of its optimizers."""
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
    """`apply_gradients` with a count. The loss-scale optimizer calls it only where the gradients are finite."""

    @functools.wraps(apply)
    def counted(*args: Any, **kwargs: Any) -> Any:
        count.assign_add(1)
        return apply(*args, **kwargs)

    return counted


def _check_use() -> None:
    """Raises `RuntimeError`, because AutoGraph turns other errors into long ones of its own."""
    if problem := _policy_problem():
        raise RuntimeError(problem)
    if tf.executing_eagerly():
        raise RuntimeError("this was called outside of a tf.function: there is no graph to rewrite")


def _check_scale(loss_scale: Any) -> None:
    """Raises `SettingsError` for an invalid scale; of a `LossScale`, the first scale is checked."""
    number = loss_scale
    if hasattr(loss_scale, "get_config"):
        config = loss_scale.get_config()
        number = config.get("loss_scale_value", config.get("initial_loss_scale"))
    elif isinstance(loss_scale, str) and loss_scale == "dynamic":
        return
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not 1 <= number < math.inf:
        raise SettingsError(f'loss_scale={number} should be "dynamic", a finite number of at least 1, or a LossScale')


def _policy_problem() -> str:
    """Why the rewrite conflicts with the dtype policy of Keras 3 or, if it is imported, of tf_keras."""
    before = sys.modules.get("tf_keras")
    policies = [keras.config.dtype_policy().name, *([before.mixed_precision.global_policy().name] if before else [])]
    wrong = next((policy for policy in policies if policy != "float32"), None)
    return f"Keras's dtype policy is {wrong}: use it or the graph rewrite, and not both" if wrong else ""


def _switch_xla_off() -> None:
    """Switch XLA off for these optimizers: it bypasses the rewrite, and on a GPU Keras uses it where it can."""
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
    """Rewrite no later graph. Optimizers that `enable` returned still scale the loss."""
    tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
    grappler.switch_off()
