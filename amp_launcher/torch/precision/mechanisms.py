"""o1, o3, and o2 without masters of its own, as mechanisms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision import float8
from amp_launcher.torch.precision.base import Mechanism
from amp_launcher.torch.precision.cast import NORMS, compute_in_float32, matching, to_dtype
from amp_launcher.torch.precision.master_weight import average_in_float32
from amp_launcher.torch.precision.operation_lists import OperationLists, refuse_unreachable
from amp_launcher.torch.precision.optimizer_weights import moves_nothing
from amp_launcher.torch.precision.running_statistics import RunningStatistics
from amp_launcher.torch.precision.saved_state import SavedState, refuse_without_scale


class Autocast(Mechanism):
    """o1: the model stays float32, and each operation runs in the dtype that the operation lists give it."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._lists = None
        if resolved.allow or resolved.deny:
            self._lists = OperationLists(resolved.allow, resolved.deny, self.dtype, device.type)
        self._stepping = False
        self._statistics = RunningStatistics() if resolved.loss_scale.mode != "none" else None
        self._unscaled: set[torch.Tensor] = set()
        """The float32 parameters of all optimizers, where there is a loss scale."""

    def cast(self, model: nn.Module) -> None:
        super().cast(model)
        names = matching(model, self.resolved.amp.keep_fp32)
        self.kept = tuple(dict.fromkeys((*self.kept, *names)))
        kept = [model.get_submodule(name) for name in names]
        refuse_unreachable(model, kept, self.resolved.allow, self.resolved.deny)
        self._convert(model, kept)
        if self.resolved.gemm != HALF:
            self._add_gemm_layers(model, float8.convert(model, self.resolved))
        if self._statistics is not None:
            self._statistics.add(model)

    def _add_gemm_layers(self, model: nn.Module, chosen: Chosen) -> None:
        prefix = next(prefix for prefix, candidate in self._cast_models() if candidate is model)
        converted = (prefix + name for name in chosen.converted)
        left_out = {prefix + name: why for name, why in chosen.left_out.items()}
        before = self.gemm_layers
        self.gemm_layers = Chosen((*before.converted, *converted), {**before.left_out, **left_out})

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type)

    def add(self, optimizer: Optimizer) -> None:
        if self.resolved.loss_scale.mode != "none":
            self._refuse_to_unscale_twice(optimizer)
            refuse_without_scale(optimizer)
        self._scaler.add(optimizer)
        optimizer.register_step_pre_hook(self._before_step)
        SavedState(optimizer, self)

    def _refuse_to_unscale_twice(self, optimizer: Optimizer) -> None:
        """Gradients are unscaled in place: a second optimizer would unscale them again."""
        own = [
            weight for group in optimizer.param_groups for weight in group["params"] if weight.dtype == torch.float32
        ]
        for name, parameter in self._named_parameters():
            if parameter in self._unscaled and any(parameter is weight for weight in own):
                raise RuntimeError(
                    f"parameter {name} is in two optimizers, and the loss scale would be taken from its gradient "
                    "twice; give it to one of them, or say amp.dtype=bfloat16, which needs no loss scale"
                )
        self._unscaled.update(own)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse a step by the optimizer itself, but for the one by which `torch.distributed.checkpoint` makes a state
        to load into: that one moves neither weights nor the loss scale."""
        if self._stepping:
            return
        if not moves_nothing(optimizer):
            closure = "closure() and then " if len(args) > 1 or kwargs else ""
            raise RuntimeError(
                f"optimizer.step() would skip unscaling and the master weights; call {closure}precision.step(optimizer)"
            )
        self._stepping = True
        try:
            self._begin_step(optimizer, None)
            optimizer.step()
        finally:
            self._leave_step(optimizer)
            self._stepping = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # so that the step which follows does nothing

    def forward(self) -> AbstractContextManager[Any]:
        if self._statistics is not None:
            self._statistics.remember()
        autocast = torch.autocast(self.device.type, dtype=self.dtype)
        return autocast if self._lists is None else _both(autocast, self._lists)

    def _step(self, optimizers: Sequence[Optimizer], clip: float | None) -> StepOutcome:
        self._stepping = True
        try:
            return super()._step(optimizers, clip)
        finally:
            self._stepping = False
            if self._statistics is not None:
                self._statistics.restore()


class HalfModelNoMasters(Autocast):
    """o2 with amp.master_weights=false: half-precision model with float32 norms, and autocast on.

    Buffers keep their dtype: tables of frequencies or positions need float32.
    """

    autocasts_half = True

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        super()._convert(model, kept)
        norms = [module for module in model.modules() if isinstance(module, NORMS)]
        to_dtype(model, self.dtype, [*kept, *norms], buffers=False)
        average_in_float32(model)


class HalfModel(Autocast):
    """o3: half precision throughout, inputs included. Only the loss is float32, as the model's outputs are."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self.inputs_to = self.dtype

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type, outputs_to=self.dtype)
        to_dtype(model, self.dtype, kept, buffers=True)
        average_in_float32(model)

    def forward(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        if loss.dtype != torch.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype} and should be float32: make it of what the prepared model returns, called "
                "as model(inputs), or of .float()"
            )
        super().backward(loss, optimizer)


@contextlib.contextmanager
def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with one, other:
        yield
