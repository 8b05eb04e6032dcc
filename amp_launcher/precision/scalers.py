"""What torch's and TensorFlow's loss scalers share: how a scale moves, no scale at all, a scale for each optimizer.

A framework's scaler has `value`, `skipped`, `add`, `of`, `update`, `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amp_launcher.precision.checks import check_saved_scale
from amp_launcher.precision.levels import LossScale
from amp_launcher.typed import SettingsError, plain


def moved(
    settings: LossScale,
    scale: Any,
    good_steps: Any,
    bad_steps: Any,
    bad: Any,
    *,
    where: Callable[[Any, Any, Any], Any],
    is_finite: Callable[[Any], Any],
) -> tuple[Any, Any, Any]:
    """Scale, and counts of good and of bad steps in a row, after an iteration that was `bad` or not. Scalars on the
    device; `where` and `is_finite` are the framework's.

    The scale is multiplied by `growth` after `growth_every` good steps in a row and by `backoff` after `backoff_every`
    bad ones, then held within `min` and `max`. A bad step starts the count of good ones anew even where the scale stays
    (Paddle's rule, `AmpScaler._update` in `python/paddle/amp/grad_scaler.py`). A static scale never moves.
    """
    if settings.mode == "static":
        return scale, good_steps, bad_steps
    good_steps, bad_steps = where(bad, good_steps * 0, good_steps + 1), where(bad, bad_steps + 1, bad_steps * 0)
    grows, shrinks = good_steps >= settings.growth_every, bad_steps >= settings.backoff_every
    grown = scale * settings.growth
    scale = where(shrinks, scale * settings.backoff, where(grows & is_finite(grown), grown, scale))
    if settings.min is not None:
        scale = where(scale < settings.min, settings.min, scale)
    if settings.max is not None:
        scale = where(scale > settings.max, settings.max, scale)
    return scale, where(grows, good_steps * 0, good_steps), where(shrinks, bad_steps * 0, bad_steps)


def scaler_of(settings: LossScale, none: Callable[[], Any], make: Callable[[], Any]) -> Any:
    """The scaler for resolved settings, whose mode is not `auto`. `make` makes the framework's scaler of one scale."""
    if settings.mode == "none":
        return none()
    return ScalePerOptimizer(settings, make) if settings.per_optimizer else make()


class NoScale:
    """No loss scaling: every step is taken."""

    value = None
    skipped = 0

    def add(self, optimizer: Any) -> None:
        pass

    def of(self, optimizer: Any) -> Any:
        return self

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise SettingsError("loss_scale=none, and the checkpoint was saved with a loss scale", "loss_scale.mode")


class ScalePerOptimizer:
    """A loss scale for each optimizer, moved by that optimizer's overflows alone."""

    def __init__(self, settings: LossScale, make: Callable[[], Any]) -> None:
        """`make` makes the scaler of one optimizer."""
        self._settings = settings
        self._make = make
        self._optimizers: list[Any] = []
        self._scalers: dict[int, Any] = {}
        """By the id of an optimizer, which `_optimizers` keeps alive."""

    @property
    def value(self) -> float:
        """The lowest scale. Waits for the device."""
        return min((scaler.value for scaler in self._scalers.values()), default=self._settings.init)

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return sum(scaler.skipped for scaler in self._scalers.values())

    def add(self, optimizer: Any) -> None:
        """Make the scale of an optimizer."""
        self._optimizers.append(optimizer)
        self._scalers[id(optimizer)] = self._make()

    def of(self, optimizer: Any) -> Any:
        """The scaler of an optimizer; None is the only one. Raises `RuntimeError` where it isn't clear which."""
        if optimizer is None and len(self._scalers) == 1:
            return next(iter(self._scalers.values()))
        if optimizer is None:
            raise RuntimeError(
                f"loss_scale.per_optimizer=true with {len(self._scalers)} optimizers: say whose loss it is, as in "
                "precision.backward(loss, optimizer)"
            )
        if id(optimizer) not in self._scalers:
            raise RuntimeError(
                "this optimizer has no loss scale: it was not prepared, with its model, by this Precision"
            )
        return self._scalers[id(optimizer)]

    def update(self) -> None:
        """Move the scales."""
        for scaler in self._scalers.values():
            scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scales in the order in which the optimizers were added. Waits for the device."""
        scalers = [scaler.state_dict() for scaler in self._scalers.values()]
        return {"settings": plain(self._settings), "optimizers": scalers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved scales. Raises `SettingsError` where they were saved under other settings, or of another number
        of optimizers."""
        check_saved_scale(self._settings, state, self.state_dict())
        saved, prepared = len(state["optimizers"]), len(self._scalers)
        if saved != prepared:
            raise SettingsError(
                f"loss_scale.per_optimizer=true: the checkpoint has the loss scales of {saved} optimizers, and "
                f"{prepared} are prepared; call precision.prepare with all of them before load_state_dict"
            )
        for scaler, scale in zip(self._scalers.values(), state["optimizers"], strict=True):
            scaler.load_state_dict(scale)
