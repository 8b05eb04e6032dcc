"""What carries a precision level out: a mechanism, one class each, which `Precision` calls."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.gemm_layers import NO_LAYERS
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.scalers import ScalePerOptimizer
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision.loss_scale import LossScaler, NoScale, make_scaler


class Mechanism:
    """This class is o0, float32; its subclasses are the other mechanisms."""

    inputs_to: torch.dtype | None = None
    """What the floating-point inputs of a model are cast to; None leaves them to autocast."""
    autocasts_half = False
    """Whether the model's weights are half-precision and run under autocast."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        self.resolved = resolved
        self.level = resolved.level
        self.dtype: torch.dtype = getattr(torch, resolved.dtype)
        self.device = device
        self.kept: tuple[str, ...] = ()
        """Names of the modules that `amp.keep_fp32` keeps in float32, once a model was cast."""
        self.gemm_layers = NO_LAYERS
        """The linear layers that `amp.gemm` converted in the models that were cast, named as in `module_names`."""
        self._scaler: NoScale | LossScaler | ScalePerOptimizer = make_scaler(resolved.loss_scale, device)
        self._models: list[weakref.ref[nn.Module]] = []

    def cast(self, model: nn.Module) -> None:
        """Put the model in the level's dtypes, in place. Raises `SettingsError` for an operation list that couldn't be
        kept in this model."""
        self._models.append(weakref.ref(model))

    def add(self, optimizer: Optimizer) -> None:
        """Make an optimizer of cast models step the level's weights, masters at o2. Once for each."""

    def look_at(self, model: nn.Module) -> None:
        """Look at a cast model as it will be trained. Raises `RuntimeError` where the level can't do that."""

    def reduce(self, wrapper: DistributedDataParallel) -> None:
        """Reduce the gradients of a wrapped model over the ranks as the level has it. Before its first backward."""

    def master_parameters(self) -> dict[str, torch.Tensor]:
        return dict(self._named_parameters())

    def parameter_names(self, optimizer: Optimizer) -> dict[torch.Tensor, str]:
        """An optimizer's parameters, in its order, with their names in the model."""
        names = {parameter: name for name, parameter in self._named_parameters()}
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return {parameter: names.get(parameter, f"unnamed.{position}") for position, parameter in enumerate(own)}

    def module_names(self) -> dict[nn.Module, str]:
        return {
            module: prefix + name for prefix, model in self._cast_models() for name, module in model.named_modules()
        }

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, model in self._cast_models():
            for name, parameter in model.named_parameters():
                yield prefix + name, parameter

    def _cast_models(self) -> Iterator[tuple[str, nn.Module]]:
        """With what their names begin with."""
        for number, reference in enumerate(self._models):
            model = reference()
            if model is not None:
                yield (f"{number}/" if number else ""), model

    def forward(self) -> AbstractContextManager[Any]:
        """The context of forward and loss."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        scaler = self._scaler.of(optimizer)
        scaler.begin_backward(loss, optimizer)
        scaler.scale(loss).backward()

    def step(self, *optimizers: Optimizer, clip: float | None) -> StepOutcome:
        for optimizer in optimizers:
            self._scaler.of(optimizer).refuse_again(optimizer)
        together = [optimizers] if clip is not None else [(optimizer,) for optimizer in optimizers]
        return joint_outcome([self._step(several, clip) for several in together])

    def _step(self, optimizers: Sequence[Optimizer], clip: float | None) -> StepOutcome:
        try:
            for optimizer in optimizers:
                self._begin_step(optimizer, clip)
            return self._take_steps(optimizers, clip)
        finally:
            for optimizer in optimizers:
                self._leave_step(optimizer)

    def _take_steps(self, optimizers: Sequence[Optimizer], clip: float | None) -> StepOutcome:
        outcomes, norm = [], None
        if clip is not None:
            for optimizer in optimizers:
                self._scaler.of(optimizer).unscale_(optimizer)
            stepped = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
            norm = torch.nn.utils.clip_grad_norm_(list(dict.fromkeys(itertools.chain.from_iterable(stepped))), clip)
            if hasattr(norm, "full_tensor"):  # of shards: each rank has its part of it
                norm = norm.full_tensor()
        for optimizer in optimizers:
            scaler = self._scaler.of(optimizer)
            scale = scaler.snapshot()
            scaler.step(optimizer)
            outcomes.append(StepOutcome(overflowed=scaler.overflowed(optimizer), loss_scale=scale, grad_norm=norm))
            self._end_step(optimizer)
        return joint_outcome(outcomes)

    def _begin_step(self, optimizer: Optimizer, clip: float | None) -> None:
        """Give the optimizer the gradients that it steps by, still scaled. `clip` is that of `step`."""

    def _end_step(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped, or skipped its step."""

    def _leave_step(self, optimizer: Optimizer) -> None:
        """After a step that was begun, failed or not: give the optimizer the model's parameters back."""

    @property
    def scale(self) -> float | None:
        return self._scaler.value

    @property
    def skipped_total(self) -> int:
        return self._scaler.skipped

    steps_float32 = False

    def saved(self, optimizer: Optimizer) -> dict[str, Any]:
        """What an optimizer's own `state_dict` has of the precision: the loss scale with its counts, if any."""
        scaler = self._scaler.of(optimizer)
        scale = scaler.state_dict()
        return {"dtype": str(self.dtype), "scaler": scale} if scale else {}

    def load_saved(self, optimizer: Optimizer, saved: Mapping[str, Any] | None) -> None:
        """Restore it after the optimizer has loaded; nothing where that was saved in another dtype, or without."""
        scaler = self._scaler.of(optimizer)
        if saved and saved["dtype"] == str(self.dtype) and saved.get("scaler") and scaler.value is not None:
            scaler.load_state_dict(saved["scaler"])

    def unstepped_masters(self, optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor]]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "dtype": str(self.dtype), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_saved_level(state, self.level, str(self.dtype))
        self._scaler.load_state_dict(state["scaler"])


def joint_outcome(outcomes: Sequence[StepOutcome]) -> StepOutcome:
    """Of several optimizers' steps in one iteration: overflowed where any did, with the lowest loss scale."""
    first, *others = outcomes
    overflowed, scale = first.overflowed, first.loss_scale
    for other in others:
        if other.overflowed is not None:
            overflowed, scale = overflowed | other.overflowed, torch.minimum(scale, other.loss_scale)
    return StepOutcome(overflowed=overflowed, loss_scale=scale, grad_norm=first.grad_norm)
