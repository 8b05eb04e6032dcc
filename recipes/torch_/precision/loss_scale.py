"""Loss scaling: torch's own `GradScaler`, with bad steps counted before it backs off, bounds, and a static mode.

Everything stays on the device. These wait for it: reading `value`, `skipped` and `state_dict`, and the step of an
optimizer that isn't `fused=True`, for which torch reads one flag back.

`GradScaler` has no public access to its scale as a tensor or to an optimizer's overflow. Only this file reads `_scale`
and `_per_optimizer_states`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from recipes.precision.checks import check_saved_scale
from recipes.precision.levels import LossScale
from recipes.typed import SettingsError, plain


class NoScale:
    """No loss scaling: every step is taken."""

    value = None
    skipped = 0

    def add(self, optimizer: Optimizer) -> None:
        pass

    def of(self, optimizer: Optimizer | None) -> NoScale:
        return self

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def snapshot(self) -> torch.Tensor | None:
        return None

    def unscale_(self, optimizer: Optimizer) -> None:
        pass

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def overflowed(self, optimizer: Optimizer) -> torch.Tensor | None:
        return None

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise SettingsError("loss_scale=none, and the checkpoint was saved with a loss scale", "loss_scale.mode")


class LossScaler(torch.amp.GradScaler):
    """Dynamic loss scale.

    A step with an infinity or a NaN in its gradients is bad: it is skipped. The scale is multiplied by `growth` after
    `growth_every` good steps in a row and by `backoff` after `backoff_every` bad ones, then held within `min` and
    `max`. A bad step starts the count of good ones anew even where the scale stays (Paddle's rule, `AmpScaler._update`
    in `python/paddle/amp/grad_scaler.py`).
    """

    def __init__(self, settings: LossScale, device: torch.device) -> None:
        super().__init__(
            device.type,
            init_scale=settings.init,
            growth_factor=settings.growth,
            backoff_factor=settings.backoff,
            growth_interval=settings.growth_every,
        )
        self._settings = settings
        self._bad_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def value(self) -> float:
        """The scale. Waits for the device."""
        return self.get_scale()

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far. Waits for the device."""
        return int(self._skipped)

    def add(self, optimizer: Optimizer) -> None:
        """Register an optimizer, which shares this scale."""

    def of(self, optimizer: Optimizer | None) -> LossScaler:
        """The scaler of an optimizer."""
        return self

    @property
    def stepped(self) -> bool:
        """Whether an optimizer was stepped or unscaled since the last `update`."""
        return bool(self._per_optimizer_states)

    def snapshot(self) -> torch.Tensor | None:
        """A copy of the scale as it is now, on the device; None before the first `scale`."""
        return None if self._scale is None else self._scale.clone()

    def step(self, optimizer: Optimizer) -> None:
        """Step unless the gradients overflowed; count it if they did."""
        if any(each.grad is not None for group in optimizer.param_groups for each in group["params"]):
            super().step(optimizer)
        else:
            self._step_without_gradients(optimizer)
        self._skipped.add_(self.overflowed(optimizer))

    def _step_without_gradients(self, optimizer: Optimizer) -> None:
        """Where `GradScaler` raises: without gradients nothing overflowed."""
        nothing = torch.zeros((), device=self._skipped.device)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {nothing.device: nothing}
        optimizer.step()

    def overflowed(self, optimizer: Optimizer) -> torch.Tensor:
        """Whether `optimizer`'s step was bad: a bool scalar on the device. Valid between `step` and `update`."""
        return self._found(self._per_optimizer_states[id(optimizer)])

    def update(self) -> None:
        """Move the scale. Once an iteration, after the steps of all optimizers; bad is one with any bad step.

        Raises `RuntimeError` where no optimizer was stepped.
        """
        if not self.stepped:
            raise RuntimeError("precision.update() comes after precision.step(optimizer), and there was none")
        every = self._settings.backoff_every
        if every == 1:
            super().update()
        else:
            bad = torch.stack([self._found(each) for each in self._per_optimizer_states.values()]).any()
            before = self._scale.clone()
            self._bad_steps.add_(1).mul_(bad)
            super().update()
            self._scale.copy_(torch.where(bad & (self._bad_steps < every), before, self._scale))
            self._bad_steps.remainder_(every)
        if self._settings.min is not None or self._settings.max is not None:
            self._scale.clamp_(self._settings.min, self._settings.max)

    def _found(self, state: dict[str, Any]) -> torch.Tensor:
        """Whether one optimizer's gradients held an infinity or a NaN, on whichever of its devices."""
        first, *others = state["found_inf_per_device"].values()
        for each in others:
            first = first + each.to(first.device, non_blocking=True)
        return first > 0

    def state_dict(self) -> dict[str, Any]:
        """Scale, counts, and the settings that they belong to. Waits for the device."""
        counts = {"bad_steps": int(self._bad_steps), "skipped": int(self._skipped)}
        return {**super().state_dict(), **counts, "settings": plain(self._settings)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved scale. Raises `SettingsError` where it was saved under other settings."""
        check_saved_scale(self._settings, state)
        super().load_state_dict(state)
        self._bad_steps.fill_(state.get("bad_steps", 0))
        self._skipped.fill_(state.get("skipped", 0))


class StaticLossScaler(LossScaler):
    """A scale that never moves. A bad step is skipped all the same."""

    def update(self) -> None:
        torch.amp.GradScaler.update(self, new_scale=self._settings.init)


class LossScalers:
    """A loss scale for each optimizer, which its own overflows alone move."""

    def __init__(self, settings: LossScale, device: torch.device) -> None:
        self._settings = settings
        self._device = device
        self._scalers: dict[Optimizer, LossScaler] = {}

    @property
    def value(self) -> float:
        """The lowest scale. Waits for the device."""
        return min((each.value for each in self._scalers.values()), default=self._settings.init)

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return sum(each.skipped for each in self._scalers.values())

    def add(self, optimizer: Optimizer) -> None:
        """Give an optimizer its scale."""
        self._scalers[optimizer] = _one(self._settings, self._device)

    def of(self, optimizer: Optimizer | None) -> LossScaler:
        """The scaler of an optimizer; None is the only one. Raises `RuntimeError` where it isn't clear which."""
        if optimizer is None and len(self._scalers) == 1:
            return next(iter(self._scalers.values()))
        if optimizer is None:
            raise RuntimeError(
                f"loss_scale.per_optimizer=true with {len(self._scalers)} optimizers: say whose loss it is, as in "
                "precision.backward(loss, optimizer)"
            )
        if optimizer not in self._scalers:
            raise RuntimeError("this optimizer has no loss scale; call precision.optimizer(model, optimizer) first")
        return self._scalers[optimizer]

    def update(self) -> None:
        """Move the scales of the optimizers that were stepped. Raises `RuntimeError` where none was."""
        stepped = [each for each in self._scalers.values() if each.stepped]
        if not stepped:
            raise RuntimeError("precision.update() comes after precision.step(optimizer), and there was none")
        for each in stepped:
            each.update()

    def state_dict(self) -> dict[str, Any]:
        """Each optimizer's, in the order that they were added in. Waits for the device."""
        return {"settings": plain(self._settings), "optimizers": [each.state_dict() for each in self._scalers.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load saved scales. Raises `SettingsError` where they were saved under other settings."""
        check_saved_scale(self._settings, state)
        for each, saved in zip(self._scalers.values(), state["optimizers"], strict=True):
            each.load_state_dict(saved)


def make_scaler(settings: LossScale, device: torch.device) -> NoScale | LossScaler | LossScalers:
    """The scaler for a resolved loss scale (`recipes.precision.resolved`)."""
    if settings.mode == "none":
        return NoScale()
    return LossScalers(settings, device) if settings.per_optimizer else _one(settings, device)


def _one(settings: LossScale, device: torch.device) -> LossScaler:
    return (StaticLossScaler if settings.mode == "static" else LossScaler)(settings, device)
