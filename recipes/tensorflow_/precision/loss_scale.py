"""Loss scaling in TensorFlow graphs, with bad steps counted before it backs off, bounds, and a static mode.

Keras has a `LossScaleOptimizer`, which counts no bad steps, has no bounds and can't be shared by two optimizers. This
one is four variables beside the optimizers, moved by the same rule as torch's scaler here. Everything stays on the
device; reading `value`, `skipped` and `state_dict` waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from recipes.precision.checks import check_saved_scale
from recipes.precision.levels import LossScale
from recipes.tensorflow_.precision.gradients import Gradient, mapped
from recipes.typed import SettingsError, plain


class NoScale:
    """No loss scaling: every step is taken."""

    value = None
    skipped = 0

    def add(self, optimizer: Any) -> None:
        pass

    def of(self, optimizer: Any) -> NoScale:
        return self

    def current(self) -> tf.Tensor | None:
        return None

    def unscale(self, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        return list(gradients)

    def found(self, overflowed: tf.Tensor) -> None:
        pass

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise SettingsError("loss_scale=none, and the checkpoint was saved with a loss scale", "loss_scale.mode")


class LossScaler:
    """Dynamic loss scale.

    A step with an infinity or a NaN in its gradients is bad: it is skipped. The scale is multiplied by `growth` after
    `growth_every` good steps in a row and by `backoff` after `backoff_every` bad ones, then held within `min` and
    `max`. A bad step starts the count of good ones anew even where the scale stays.

    To be made in the scope of the strategy that it is used under. `found` and `update` are called inside a graph, in a
    replica, with what all replicas have in common.
    """

    def __init__(self, settings: LossScale) -> None:
        self._settings = settings
        self._scale = _variable(settings.init, tf.float32, "loss_scale")
        self._good_steps = _variable(0, tf.int64, "good_steps")
        self._bad_steps = _variable(0, tf.int64, "bad_steps")
        self._skipped = _variable(0, tf.int64, "skipped")
        self._bad = _variable(0, tf.int64, "bad")
        """Bad optimizer steps of the iteration that is under way."""
        self._steps = _variable(0, tf.int64, "steps")
        """All of them."""

    def add(self, optimizer: Any) -> None:
        """Make an optimizer known, which shares this scale."""

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
        """The scale, as a scalar of the graph."""
        return tf.identity(self._scale)

    def unscale(self, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the loss itself, in float32. None, of a variable that the loss doesn't depend on, stays."""
        inverse = 1.0 / self._scale
        return [
            None if each is None else mapped(lambda part: tf.cast(part, tf.float32) * inverse, each)
            for each in gradients
        ]

    def found(self, overflowed: tf.Tensor) -> None:
        """Take in whether an optimizer's step was bad: a bool scalar."""
        bad = tf.cast(overflowed, tf.int64)
        self._bad.assign_add(bad)
        self._steps.assign_add(1)
        self._skipped.assign_add(bad)

    def update(self) -> None:
        """Move the scale. Once an iteration, after the steps of all optimizers; bad is one with any bad step."""
        chosen = self._settings
        bad, stepped = self._bad > 0, self._steps > 0
        none = tf.zeros((), tf.int64)
        bad_steps = tf.where(bad, self._bad_steps + 1, tf.where(stepped, none, self._bad_steps))
        good_steps = tf.where(bad, none, self._good_steps + tf.cast(stepped, tf.int64))
        shrinks, grows = bad_steps >= chosen.backoff_every, good_steps >= chosen.growth_every
        scale = tf.identity(self._scale)
        grown = scale * chosen.growth
        moved = tf.where(shrinks, scale * chosen.backoff, tf.where(grows & tf.math.is_finite(grown), grown, scale))
        moved = tf.maximum(moved, chosen.min or 0.0)
        self._scale.assign(moved if chosen.max is None else tf.minimum(moved, chosen.max))
        self._bad_steps.assign(tf.where(shrinks, none, bad_steps))
        self._good_steps.assign(tf.where(grows, none, good_steps))
        self._bad.assign(none)
        self._steps.assign(none)

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
        """Go on from a saved scale. Raises `SettingsError` where it was saved under other settings."""
        check_saved_scale(self._settings, state)
        self._scale.assign(state["scale"])
        self._good_steps.assign(state["good_steps"])
        self._bad_steps.assign(state["bad_steps"])
        self._skipped.assign(state["skipped"])


class StaticLossScaler(LossScaler):
    """A scale that never moves. A bad step is skipped all the same."""

    def update(self) -> None:
        self._bad.assign(0)
        self._steps.assign(0)


class LossScalers:
    """A loss scale for each optimizer, which its own overflows alone move. `add` is called in the strategy's scope."""

    def __init__(self, settings: LossScale) -> None:
        self._settings = settings
        self._scalers: dict[int, LossScaler] = {}
        """By the optimizer's id; who adds an optimizer keeps it."""

    @property
    def value(self) -> float:
        """The lowest scale. Waits for the device."""
        return min((each.value for each in self._scalers.values()), default=self._settings.init)

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return sum(each.skipped for each in self._scalers.values())

    def add(self, optimizer: Any) -> None:
        """Give an optimizer its scale."""
        self._scalers[id(optimizer)] = _one(self._settings)

    def of(self, optimizer: Any) -> LossScaler:
        """The scaler of an optimizer. Raises `RuntimeError` for one that was not added."""
        if id(optimizer) not in self._scalers:
            raise RuntimeError("this optimizer has no loss scale; call precision.optimizer(optimizer, variables) first")
        return self._scalers[id(optimizer)]

    def update(self) -> None:
        """Move the scales of the optimizers that were stepped."""
        for each in self._scalers.values():
            each.update()

    def state_dict(self) -> dict[str, Any]:
        """Each optimizer's, in the order that they were added in. Waits for the device."""
        return {"settings": plain(self._settings), "optimizers": [each.state_dict() for each in self._scalers.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved scales. Raises `SettingsError` where they were saved under other settings."""
        check_saved_scale(self._settings, state)
        for each, saved in zip(self._scalers.values(), state["optimizers"], strict=True):
            each.load_state_dict(saved)


def make_scaler(settings: LossScale) -> NoScale | LossScaler | LossScalers:
    """The scaler for a resolved loss scale (`recipes.precision.resolved`)."""
    if settings.mode == "none":
        return NoScale()
    return LossScalers(settings) if settings.per_optimizer else _one(settings)


def _one(settings: LossScale) -> LossScaler:
    return (StaticLossScaler if settings.mode == "static" else LossScaler)(settings)


def _variable(value: float, dtype: tf.DType, name: str) -> tf.Variable:
    """One that all replicas hold alike, each assigning it the same."""
    return tf.Variable(
        value, dtype=dtype, trainable=False, name=name, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
