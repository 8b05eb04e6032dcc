"""Float32 master weights for an optimizer over half-precision parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

HALF = (torch.float16, torch.bfloat16)
LARGE = 2**20
"""From so many elements in each weight on, one kernel for each keeps a GPU as busy as one for a whole list."""


class Masters:
    """Float32 copies of an optimizer's half-precision parameters, which it steps in their stead.

    The optimizer's own groups and state hold the masters from then on, so that its `state_dict` is float32 as well.
    Copies are single `torch._foreach` calls over lists made once. Memory: 8 bytes a parameter, 4 for the master and,
    from the first step on that needs it, 4 for its gradient, both for as long as the optimizer lives.
    """

    def __init__(self, optimizer: Optimizer, unrounded: Mapping[torch.Tensor, torch.Tensor] | None = None) -> None:
        """`unrounded` has the float32 weights that parameters were cast from, which become the masters."""
        self.parameters: list[torch.Tensor] = []
        self.masters: list[torch.Tensor] = []
        self._unrounded = unrounded or {}
        for group in optimizer.param_groups:
            group["params"] = [self._master(each, optimizer.state) for each in group["params"]]
        self._unrounded = {}
        self._gradients: list[torch.Tensor | None] = [None] * len(self.masters)
        self._optimizer = optimizer
        self._clear = optimizer.zero_grad
        optimizer.zero_grad = self._zero_grad  # type: ignore[method-assign]

    def _master(self, parameter: torch.Tensor, state: dict[Any, Any]) -> torch.Tensor:
        if parameter.dtype not in HALF:
            return parameter
        master = torch.nn.Parameter(self._start(parameter), requires_grad=parameter.requires_grad)
        if parameter in state:  # some optimizers, Adagrad among them, make their state at once
            state[master] = {
                name: value.float() if torch.is_tensor(value) and value.dtype in HALF else value
                for name, value in state.pop(parameter).items()
            }
        self.parameters.append(parameter)
        self.masters.append(master)
        return master

    def _start(self, parameter: torch.Tensor) -> torch.Tensor:
        """What the parameter was cast from, unless it has been given other weights since."""
        weights = parameter.detach()
        before = self._unrounded.get(parameter)
        if before is not None and before.shape == weights.shape:
            before = before.to(weights.device)
            if torch.equal(before.to(weights.dtype), weights):
                return before
        return weights.float()

    def _zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's own, over the model's gradients too: a GAN's generator leaves some on its critic."""
        self._clear(set_to_none)
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Move the model's gradients to the masters, adding to what is there. The model's are None afterwards."""
        fresh: list[torch.Tensor] = []
        into_fresh: list[torch.Tensor] = []
        more: list[torch.Tensor] = []
        into_more: list[torch.Tensor] = []
        for number, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            parameter.grad = None
            buffer = self._gradients[number]
            if buffer is None:
                buffer = self._gradients[number] = torch.empty_like(master)
            if master.grad is None:
                master.grad = buffer
                fresh.append(gradient)
                into_fresh.append(buffer)
            else:
                more.append(gradient)
                into_more.append(buffer)
        if fresh:
            torch._foreach_copy_(into_fresh, fresh)
        if more:
            torch._foreach_add_(into_more, more)

    def lends(self) -> bool:
        """Whether the model's own gradients can be lent: SGD without momentum adds them to the masters in float32,
        whatever their dtype, so that a copy in float32 would be bytes moved for nothing. On a GPU, of large weights,
        where these bytes are what the step's time goes into; and where no micro-batch before left gradients."""
        return (
            type(self._optimizer) is torch.optim.SGD
            and hasattr(torch.Tensor, "grad_dtype")  # before torch 2.10, a gradient has its weight's dtype
            and not any(
                group["momentum"] or group["weight_decay"] or group["fused"] or group["differentiable"]
                for group in self._optimizer.param_groups
            )
            and all(each.is_cuda and each.grad is None for each in self.masters)
            and sum(each.numel() for each in self.masters) >= LARGE * len(self.masters)
        )

    def lend_gradients(self) -> None:
        """Give the model's gradients to the masters as they are, for the next step. The model's are None afterwards."""
        for group in self._optimizer.param_groups:
            group["foreach"] = False  # lists have to be of one dtype
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                master.grad_dtype = None  # of any
                master.grad, parameter.grad = parameter.grad, None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the masters into the model's parameters."""
        if self.masters:
            torch._foreach_copy_(self.parameters, self.masters)

    def drop_gradients(self) -> None:
        """Forget the masters' gradients, so that `model.zero_grad()`, which can't see them, is enough for the next."""
        for master in self.masters:
            master.grad = None

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Take up weights that were loaded into the model, save where a master rounds to them already."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if not torch.equal(master.to(parameter.dtype), parameter):
                master.copy_(parameter)

    def state(self) -> list[torch.Tensor]:
        return [each.detach() for each in self.masters]

    @torch.no_grad()
    def load(self, saved: Sequence[torch.Tensor]) -> None:
        """Take up saved masters and round them into the model. Raises `ValueError` for those of another model."""
        if [each.shape for each in saved] != [each.shape for each in self.masters]:
            raise ValueError("the saved master weights are another model's: their number or shapes differ")
        for master, each in zip(self.masters, saved, strict=True):
            master.copy_(each)
        self.give_weights()
