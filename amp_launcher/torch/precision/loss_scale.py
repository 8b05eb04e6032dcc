"""Loss scaling: torch's own `GradScaler`, with bad steps counted before it backs off, bounds, and a static mode.

Everything stays on the device. These wait for it: reading `value`, `skipped` and `state_dict`, the step of an optimizer
that isn't `fused=True`, for which torch reads one flag back, and a fused one's step that makes its state.

`GradScaler` has no public access to its scale as a tensor or to an optimizer's overflow. Only this file reads `_scale`
and `_per_optimizer_states`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from amp_launcher.precision import scalers
from amp_launcher.precision.checks import check_saved_scale
from amp_launcher.precision.levels import LossScale
from amp_launcher.typed import plain


class NoScale(scalers.NoScale):
    def begin_backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        pass

    def refuse_again(self, optimizer: Optimizer) -> None:
        pass

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


class LossScaler(torch.amp.GradScaler):
    """A loss scale, dynamic or static. A step with an infinity or a NaN in its gradients is bad: it is skipped."""

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
        self._sharing: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Since the last update."""
        self._accumulating = False
        """Whether there was a backward since the last step."""

    @property
    def value(self) -> float:
        """The scale. Waits for the device."""
        self._end_iteration()
        return self.get_scale()

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far. Waits for the device."""
        return int(self._skipped)

    def add(self, optimizer: Optimizer) -> None:
        """Register an optimizer, which shares this scale."""
        self._sharing.add(optimizer)

    def of(self, optimizer: Optimizer | None) -> LossScaler:
        """The scaler of an optimizer."""
        return self

    def begin_backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        """Move the scale where this loss begins an iteration: where all optimizers that share the scale have stepped,
        or it is for those that have, as for a critic that steps several times: it is said to be (`optimizer`), or gives
        gradients to none of the others. Until then others may still step by gradients of the scale that it has."""
        named = optimizer in self._stepped
        if named or (optimizer is None and not self._accumulating and self._is_for_stepped(loss)):
            self.update()
        self._accumulating = True
        self._end_iteration()

    def _is_for_stepped(self, loss: torch.Tensor) -> bool:
        waiting = self._sharing.difference(self._stepped)
        if not (waiting and self._stepped):
            return False
        others, own = set(_parameters(waiting)), set(_parameters(self._stepped))
        return others.isdisjoint(_reached(loss)) and not own.isdisjoint(_reached(loss))  # each ends at the first

    def _end_iteration(self) -> None:
        if self._stepped.issuperset(self._sharing):
            self.update()

    def refuse_again(self, optimizer: Optimizer) -> None:
        """Before a step: refuse a second one in an iteration, which `begin_backward` could not tell for one."""
        if optimizer in self._stepped:
            raise RuntimeError(
                "this optimizer steps again before others that share its loss scale, by a loss that reaches their "
                "weights too: say whose loss each is: precision.backward(loss, optimizer)"
            )

    def snapshot(self) -> torch.Tensor | None:
        """A copy of the scale as it is now, on the device; None before the first `scale`."""
        return None if self._scale is None else self._scale.clone()

    def step(self, optimizer: Optimizer) -> None:
        """Step unless the gradients overflowed; count it if they did."""
        before = len(optimizer.state)
        if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
            super().step(optimizer)
        else:
            self._step_without_gradients(optimizer)
        self._stepped.add(optimizer)
        self._accumulating = False
        overflowed = self.overflowed(optimizer)
        if len(optimizer.state) > before and overflowed:
            # A fused kernel initialises nothing then: SGD's momentum, made by `empty_like`, holds whatever was there.
            for parameter in list(optimizer.state)[before:]:
                del optimizer.state[parameter]
        self._skipped.add_(overflowed)

    def _step_without_gradients(self, optimizer: Optimizer) -> None:
        """Where `GradScaler` raises: without gradients nothing overflowed."""
        nothing = torch.zeros((), device=self._skipped.device)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {nothing.device: nothing}
        optimizer.step()

    def overflowed(self, optimizer: Optimizer) -> torch.Tensor:
        """Whether `optimizer`'s step was bad: a bool scalar on the device. Valid between `step` and `update`."""
        return self._found(self._per_optimizer_states[id(optimizer)])

    def update(self) -> None:
        """Move the scale after the steps since the last time, if any; bad is an iteration with any bad step."""
        if not self._stepped:
            return
        self._stepped.clear()
        settings = self._settings
        if settings.mode == "dynamic" and settings.backoff_every == 1:
            super().update()  # the same in one kernel
            if settings.min is not None or settings.max is not None:
                self._scale.clamp_(settings.min, settings.max)
            return
        bad = torch.stack([self._found(state) for state in self._per_optimizer_states.values()]).any()
        counts = self._growth_tracker, self._bad_steps
        scale, *moved = scalers.moved(settings, self._scale, *counts, bad, where=torch.where, is_finite=torch.isfinite)
        super().update(new_scale=scale)
        for count, new in zip(counts, moved, strict=True):
            count.copy_(new)

    def _found(self, state: dict[str, Any]) -> torch.Tensor:
        """Whether one optimizer's gradients held an infinity or a NaN, on whichever of its devices."""
        first, *others = state["found_inf_per_device"].values()
        for flag in others:
            first = first + flag.to(first.device, non_blocking=True)
        return first > 0

    def state_dict(self) -> dict[str, Any]:
        """Scale, counts, and the settings that they belong to. Waits for the device."""
        self._end_iteration()
        counts = {"bad_steps": int(self._bad_steps), "skipped": int(self._skipped)}
        return {**super().state_dict(), **counts, "settings": plain(self._settings)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved scale. Raises `SettingsError` where it was saved under other settings."""
        check_saved_scale(self._settings, state, self.state_dict())
        self.update()  # by the steps before, which end here
        super().load_state_dict(state)
        self._bad_steps.fill_(state["bad_steps"])
        self._skipped.fill_(state["skipped"])


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    return (parameter for one in optimizers for group in one.param_groups for parameter in group["params"])


def _reached(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a backward from this loss gives gradients to."""
    seen, left = set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable
        left.extend(following for following, _ in node.next_functions)


def make_scaler(settings: LossScale, device: torch.device) -> NoScale | LossScaler | scalers.ScalePerOptimizer:
    """The scaler for a resolved loss scale (`amp_launcher.precision.resolved`)."""
    scaler: NoScale | LossScaler | scalers.ScalePerOptimizer = scalers.scaler_of(
        settings, NoScale, lambda: LossScaler(settings, device)
    )
    return scaler
