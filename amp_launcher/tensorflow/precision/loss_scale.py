"""Loss scaling in TensorFlow graphs: dynamic with bounds and delayed backoff, static, one for each optimizer, or none.

Keras's `LossScaleOptimizer` has neither bounds nor delayed backoff, and two optimizers can't share it. This scaler is a
few variables beside the optimizers. All of it stays on the device; reading
`value`, `skipped` and `state_dict` waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.precision import scalers
from amp_launcher.precision.checks import check_saved_scale
from amp_launcher.precision.levels import LossScale
from amp_launcher.precision.scalers import ScalePerOptimizer
from amp_launcher.tensorflow.precision.gradients import Gradient, map_values
from amp_launcher.typed import plain

SAVED = ("_scale", "_good_steps", "_bad_steps", "_skipped", "_bad", "_steps")
"""The variables of a scale."""


class NoScale(scalers.NoScale):
    def current(self) -> tf.Tensor | None:
        return None

    def unscale(self, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        return list(gradients)

    def record(self, overflowed: tf.Tensor) -> None:
        pass


class LossScaler(tf.Module):
    """A loss scale, dynamic or static. A step with an infinity or a NaN in its gradients is bad and is skipped.

    Make it in the scope of the strategy that it is used under. Call `record` and `update` in a graph, in each replica,
    with values that are the same on all replicas.
    """

    def __init__(self, settings: LossScale) -> None:
        super().__init__()
        self._settings = settings
        self._scale = _variable(settings.init, tf.float32, "loss_scale")
        self._good_steps = _variable(0, tf.int64, "good_steps")
        self._bad_steps = _variable(0, tf.int64, "bad_steps")
        self._skipped = _variable(0, tf.int64, "skipped")
        self._bad = _variable(0, tf.int64, "bad")
        """Bad optimizer steps of the current iteration."""
        self._steps = _variable(0, tf.int64, "steps")
        """Optimizer steps of the current iteration."""

    def add(self, optimizer: Any) -> None:
        """Register an optimizer. All of them share this scale."""

    def of(self, optimizer: Any) -> LossScaler:
        """The scaler of an optimizer."""
        return self

    @property
    def value(self) -> float:
        """The scale. Waits for the device."""
        return float(self._scale.numpy())

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far. Waits for the device."""
        return int(self._skipped.numpy())

    def current(self) -> tf.Tensor:
        """The scale as a scalar of the graph."""
        return tf.identity(self._scale)

    def unscale(self, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the unscaled loss, in float32."""
        scale = self.current()
        # Not times the inverse: that of 2**127 is subnormal, and flushed to 0.
        return map_values(lambda part: tf.cast(part, tf.float32) / scale, gradients)

    def record(self, overflowed: tf.Tensor) -> None:
        """Count one optimizer step; `overflowed`, a bool scalar, says whether it was bad."""
        bad = tf.cast(overflowed, tf.int64)
        self._bad.assign_add(bad)
        self._steps.assign_add(1)
        self._skipped.assign_add(bad)

    def update(self) -> None:
        """Move the scale. Once an iteration, after all optimizers' steps; one bad step makes the iteration bad."""
        variables = self._scale, self._good_steps, self._bad_steps
        before = scale, good, bad = [tf.identity(variable) for variable in variables]
        rules = {"where": tf.where, "is_finite": tf.math.is_finite}
        after = scalers.moved(self._settings, scale, good, bad, self._bad > 0, **rules)
        stepped = self._steps > 0
        for variable, old, new in zip(variables, before, after, strict=True):
            variable.assign(tf.where(stepped, new, old))
        self._bad.assign(0)
        self._steps.assign(0)

    def state_dict(self) -> dict[str, Any]:
        """Scale, counts, and the settings that they belong to. Waits for the device."""
        return {
            "scale": self.value,
            "good_steps": int(self._good_steps.numpy()),
            "bad_steps": int(self._bad_steps.numpy()),
            "skipped": self.skipped,
            "settings": plain(self._settings),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved scale. Raises `SettingsError` where it was saved under other settings."""
        check_saved_scale(self._settings, state, self.state_dict())
        self._scale.assign(state["scale"])
        self._good_steps.assign(state["good_steps"])
        self._bad_steps.assign(state["bad_steps"])
        self._skipped.assign(state["skipped"])


class SavedScale(keras.layers.Layer):
    """An attribute of an optimizer, by which the loss scale is in what is saved of it: by `tf.train.Checkpoint`, which
    follows attributes to variables, and in the files of Keras, which asks each layer."""

    def __init__(self, scaler: LossScaler) -> None:
        super().__init__(name="loss_scale", dtype="float32")
        self.built = True
        self._scaler = scaler

    def save_own_variables(self, store: Any) -> None:
        for name in SAVED:
            store[name] = getattr(self._scaler, name).numpy()

    def load_own_variables(self, store: Any) -> None:
        for name in set(SAVED) & set(store.keys()):  # none, where it was saved without a loss scale
            getattr(self._scaler, name).assign(store[name][()])


def make_scaler(settings: LossScale) -> NoScale | LossScaler | ScalePerOptimizer:
    """The scaler for resolved settings. Call its `add` in the strategy's scope."""
    scaler: NoScale | LossScaler | ScalePerOptimizer = scalers.scaler_of(
        settings, NoScale, lambda: LossScaler(settings)
    )
    return scaler


def _variable(value: float, dtype: tf.DType, name: str) -> tf.Variable:
    """A variable that holds the same on all replicas, each of which assigns the same to it."""
    return tf.Variable(
        value, dtype=dtype, trainable=False, name=name, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
