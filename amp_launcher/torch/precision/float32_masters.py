"""o2 as a mechanism: a half-precision model, and an optimizer that steps float32 masters of its parameters."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.torch.precision.masters import Masters
from amp_launcher.torch.precision.mechanisms import HalfModelNoMasters
from amp_launcher.torch.precision.model_checks import (
    refuse_inner,
    refuse_sharded,
    same_on_all_ranks,
    several_ranks,
)
from amp_launcher.torch.precision.optimizer_weights import HALF as HALVES
from amp_launcher.torch.precision.reduction import reduce_in_float32


class HalfModelFloat32Masters(HalfModelNoMasters):
    """o2: the optimizer steps float32 masters of the half-precision parameters.

    The masters start from the weights before the cast. If they started from the rounded ones, updates smaller than a
    rounding step would move no weight of the model for many steps, and then many at once. Gradients of several
    micro-batches, and of DDP's ranks, are summed in float32.
    """

    steps_float32 = True

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._masters = Masters()
        self._unrounded: dict[torch.Tensor, torch.Tensor] = {}
        self._reducing: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        before = {own: own.data for own in model.parameters() if own.dtype == torch.float32 and own.requires_grad}
        super()._convert(model, kept)
        self._unrounded |= {
            parameter: weights for parameter, weights in before.items() if parameter.dtype == self.dtype
        }
        hook = _Loading(self)
        for module in model.modules():
            module._register_load_state_dict_pre_hook(hook, with_module=True)

    def loading(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """The model is about to load these float32 values into a half-precision parameter."""
        weight = self._masters.get(parameter)
        if weight is not None:
            weight.propose(values)
        elif parameter.requires_grad:
            self._unrounded[parameter] = values.detach().clone().to(parameter.device)

    def look_at(self, model: nn.Module) -> None:
        kept = "" if self.resolved.gemm == HALF else f" amp.gemm={self.resolved.gemm}"
        refuse_sharded(model, f"amp={self.resolved.amp.asked}", f"amp=o1{kept}")

    def reduce(self, wrapper: DistributedDataParallel) -> None:
        if wrapper not in self._reducing:
            reduce_in_float32(self._masters, wrapper)
            self._reducing.add(wrapper)
            self._note_reductions(wrapper.parameters())

    def add(self, optimizer: Optimizer) -> None:
        refuse_inner(optimizer)
        super().add(optimizer)
        self._add_masters(optimizer)
        for name in ("train", "eval"):  # schedule-free optimizers move their weights in these
            if call := getattr(optimizer, name, None):
                setattr(optimizer, name, functools.partial(self._call_on_masters, optimizer, call))

    def _renew_masters_alone(self) -> None:
        """As far as it needs no other rank."""
        if not several_ranks():
            self._renew_masters()

    def _renew_masters(self) -> None:
        for optimizer in self._masters.outdated():
            self._add_masters(optimizer)

    def _add_masters(self, optimizer: Optimizer) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        unrounded = {parameter: self._unrounded.pop(parameter) for parameter in own if parameter in self._unrounded}
        if not same_on_all_ranks(list(unrounded.values())):
            unrounded = {}  # DDP made only the rounded weights equal on all ranks
        self._masters.add(optimizer, unrounded)
        self._note_reductions(own)

    def _note_reductions(self, parameters: Iterable[torch.Tensor]) -> None:
        """Whose gradients DDP reduces."""
        reduced: dict[torch.Tensor, bool] = {}
        for module in self._reducing:
            reduced |= dict.fromkeys(module.parameters(), module.find_unused_parameters)
        for parameter in parameters:
            weight = self._masters.get(parameter)
            if weight is not None:
                weight.accumulates = parameter in reduced or not several_ranks()
                weight.zeroed_for_ddp = reduced.get(parameter, False)

    def master_parameters(self) -> dict[str, torch.Tensor]:
        self._renew_masters_alone()
        self._masters.follow_model()
        parameters = super().master_parameters()
        weights = {name: self._masters.get(parameter) for name, parameter in parameters.items()}
        return {name: weight.master if weight else parameters[name] for name, weight in weights.items()}

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        self._renew_masters()
        self._masters.begin_backward()
        try:
            super().backward(loss, optimizer)
        finally:
            self._masters.end_backward()

    def _call_on_masters(self, optimizer: Optimizer, call: Callable[..., Any], *given: Any) -> Any:
        self._renew_masters()
        self._masters.put(optimizer)
        try:
            returned = call(*given)
            self._masters.round(optimizer)
        finally:
            self._masters.take(optimizer)
        return returned

    def _begin_step(self, optimizer: Optimizer, clip: float | None) -> None:
        masters = self._masters
        self._renew_masters()
        masters.put(optimizer)
        if clip is None and self.resolved.loss_scale.mode == "none" and masters.can_share_grads(optimizer):
            masters.share_grads_with_masters(optimizer)
        else:
            masters.copy_grads_to_masters(optimizer)

    def _end_step(self, optimizer: Optimizer) -> None:
        self._masters.round(optimizer)
        self._masters.discard_sums(optimizer)

    def _leave_step(self, optimizer: Optimizer) -> None:
        if optimizer in self._masters:
            self._masters.take(optimizer)

    def saved(self, optimizer: Optimizer) -> dict[str, Any]:
        self._follow(optimizer)
        return super().saved(optimizer)

    def load_saved(self, optimizer: Optimizer, saved: Mapping[str, Any] | None) -> None:
        super().load_saved(optimizer, saved)
        if optimizer in self._masters:
            self._masters.loaded(optimizer)

    def unstepped_masters(self, optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor]]:
        return self._masters.unstepped(optimizer)

    def _follow(self, optimizer: Optimizer) -> None:
        """Follow the optimizer's parameters as they are now."""
        if optimizer in self._masters:
            self._renew_masters_alone()
            self._masters.take_loaded(optimizer)
            self._masters.give(optimizer)
            self._masters.follow_model(optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, parameter in self._named_parameters():
            weight = self._masters.get(parameter)
            if weight is not None:
                weight.propose(state.get("masters", {}).get(name))  # earlier versions have them here


class _Loading:
    """A module's hook before it loads weights. Copies and pickles of the module get one that does nothing."""

    def __init__(self, precision: HalfModelFloat32Masters | None = None) -> None:
        self._precision = None if precision is None else weakref.ref(precision)

    def __call__(
        self, module: nn.Module, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *_: Any
    ) -> None:
        precision = self._precision and self._precision()
        for name, parameter in module.named_parameters(recurse=False):
            if not precision or parameter.dtype not in HALVES:
                continue
            if metadata.get("assign_to_params_buffers"):
                raise RuntimeError(
                    "model.load_state_dict(weights, assign=True) would replace the half-precision parameters that "
                    "precision.prepare(model) made: leave assign=True out, or load before precision.prepare(model)"
                )
            values = state.get(prefix + name)
            if getattr(values, "dtype", None) == torch.float32:
                precision.loading(parameter, values)

    def __reduce__(self) -> tuple[type[_Loading], tuple[()]]:
        return _Loading, ()
