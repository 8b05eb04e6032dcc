"""Loss scaling: torch's own `GradScaler`, with bad steps counted before it backs off, bounds, and a static mode.

All of it stays on the device: nothing here waits for the GPU but reading `value` and `skipped`, and an optimizer's step
where the optimizer can't skip by itself (`scale.step`).
"""

from __future__ import annotations

from typing import Any

import torch

from recipes.levels import LossScale
from recipes.typed import SettingsError


class NoScale:
    """No loss scaling: every step is taken."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def overflowed(self, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        return None

    def snapshot(self) -> torch.Tensor | None:
        return None

    def update(self) -> None:
        pass

    @property
    def value(self) -> float | None:
        return None

    @property
    def skipped(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise SettingsError("the checkpoint holds a loss scale and this run has none", "loss_scale.mode")


class LossScaler(torch.amp.GradScaler):
    """Dynamic loss scale.

    A step with an infinity or a NaN in its gradients is bad: it is skipped. The scale is multiplied by `growth` after
    `growth_every` good steps in a row and by `backoff` after `backoff_every` bad ones, then held within `min` and
    `max`. A bad step that doesn't shrink the scale still starts the count of good ones anew (Paddle's rule:
    `paddle/phi/kernels/impl/amp_kernel_impl.h`).

    Raises `SettingsError` for a CUDA device where there is no CUDA: torch itself would only warn and scale nothing.
    """

    def __init__(self, settings: LossScale, device: torch.device) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise SettingsError("device=cuda: torch sees no CUDA GPU here; say device=cpu", "device")
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

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step unless the gradients overflowed; in the latter case count it.

        Fused optimizers decide on the device. For others torch reads one flag back from the device, here as in
        `GradScaler` itself.
        """
        super().step(optimizer)
        self._skipped.add_(self.overflowed(optimizer))

    def overflowed(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Whether `optimizer`'s last step was bad: a bool scalar on the device. Between `step` and `update` only."""
        return self._overflow([self._per_optimizer_states[id(optimizer)]])

    def update(self) -> None:
        bad = self._overflow(self._per_optimizer_states.values())
        every = self._settings.backoff_every
        if every > 1:
            before = self._scale.clone()
            self._bad_steps.add_(1).mul_(bad)
            wait = bad & (self._bad_steps < every)
            super().update()
            self._scale.copy_(torch.where(wait, before, self._scale))
            self._bad_steps.remainder_(every)
        else:
            super().update()
        if self._settings.min is not None or self._settings.max is not None:
            self._scale.clamp_(self._settings.min, self._settings.max)

    def _overflow(self, states: Any) -> torch.Tensor:
        found = [each for state in states for each in state["found_inf_per_device"].values()]
        total = found[0]
        for each in found[1:]:
            total = total + each.to(total.device, non_blocking=True)
        return total > 0

    def snapshot(self) -> torch.Tensor | None:
        """A copy of the scale as it is now, on the device."""
        return None if self._scale is None else self._scale.clone()

    @property
    def value(self) -> float:
        """The scale. Waits for the device."""
        return self.get_scale()

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far. Waits for the device."""
        return int(self._skipped)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "bad_steps": int(self._bad_steps), "skipped": int(self._skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved scale with its counts. Raises `SettingsError` where it was saved under other settings."""
        if not state:
            raise SettingsError("the checkpoint holds no loss scale and this run has one", "loss_scale.mode")
        own = super().state_dict()
        for name, key in (
            ("growth_factor", "growth"),
            ("backoff_factor", "backoff"),
            ("growth_interval", "growth_every"),
        ):
            if state[name] != own[name]:
                raise SettingsError(
                    f"loss_scale.{key}={own[name]} and the checkpoint was saved with {state[name]}", f"loss_scale.{key}"
                )
        super().load_state_dict(state)
        self._bad_steps.fill_(state["bad_steps"])
        self._skipped.fill_(state["skipped"])


class StaticLossScaler(LossScaler):
    """A scale that never moves. Steps that overflow are skipped all the same."""

    def update(self) -> None:
        torch.amp.GradScaler.update(self, new_scale=self._settings.init)


def make(settings: LossScale, device: torch.device) -> NoScale | LossScaler:
    """The scaler for a resolved loss scale (`recipes.levels.resolve_scale`)."""
    return {"none": lambda *_: NoScale(), "static": StaticLossScaler, "dynamic": LossScaler}[settings.mode](
        settings, device
    )
