"""o3, half precision throughout, as subclasses of `Precision`."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from recipes.precision.resolved import ResolvedPrecision
from recipes.precision.step_outcome import StepOutcome
from recipes.torch_.precision.cast import floats_to, to_dtype
from recipes.torch_.precision.float32_modules import compute_in_float32
from recipes.torch_.precision.mechanisms import NOT_PREPARED, Autocast
from recipes.torch_.precision.model_checks import refuse_sharded
from recipes.torch_.precision.stochastic_rounding import StochasticRounding


class HalfModel(Autocast, mechanism="half_model"):
    """o3: half precision throughout, inputs included. Only the loss is float32, by `output`."""

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type, outputs_to=self.dtype)
        to_dtype(model, self.dtype, kept, buffers=True)

    def forward(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def input(self, tensor: Any) -> Any:
        return floats_to(tensor, self.dtype)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None = None) -> None:
        if loss.dtype != torch.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype} and should be float32: make it of precision.output(...), as in "
                "loss = cross_entropy(precision.output(model(precision.input(inputs))), labels)"
            )
        super().backward(loss, optimizer)


class StochasticHalfModel(HalfModel, mechanism="half_model_stochastic"):
    """o3 with amp.rounding=stochastic: bfloat16 weights, stepped in float32 and rounded at random."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._rounding = StochasticRounding()

    def optimizer(self, model: nn.Module, optimizer: Optimizer) -> Optimizer:
        if optimizer in self._rounding:
            raise RuntimeError("precision.optimizer was called twice for the same optimizer")
        refuse_sharded(model, "amp.rounding=stochastic")
        super().optimizer(model, optimizer)
        self._rounding.add(optimizer)
        return optimizer

    def _names_of_stepped(self, optimizer: Optimizer) -> dict[torch.Tensor, str]:
        names = super()._names_of_stepped(optimizer)
        copies = self._rounding.parameters(optimizer)
        return names | {copy: names[parameter] for copy, parameter in copies.items() if parameter in names}

    def step(self, optimizer: Optimizer, clip: float | None = None) -> StepOutcome:
        if optimizer not in self._rounding:
            raise RuntimeError(NOT_PREPARED)
        try:
            self._rounding.expand(optimizer)
            outcome = super().step(optimizer, clip)
            self._rounding.round()
        finally:
            self._rounding.release()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rounding": self._rounding.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rounding.load_state_dict(state.get("rounding"))
