"""Float32 master weights for an optimizer over half-precision parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Masters:
    """Float32 copies of an optimizer's half-precision parameters, which it steps in their stead.

    The optimizer's own groups and state hold the masters afterwards, so its `state_dict` is float32 as well.
    All copies are single `torch._foreach` calls over lists made once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters: list[torch.Tensor] = []
        self.masters: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            group["params"] = [self._master(each, optimizer.state) for each in group["params"]]
        self._gradients = [torch.zeros_like(each) for each in self.masters]
        clear = optimizer.zero_grad

        def zero_grad(set_to_none: bool = True) -> None:
            clear(set_to_none)
            for parameter in self.parameters:
                parameter.grad = None

        optimizer.zero_grad = zero_grad  # the model's own gradients go too, as people expect of it

    def _master(self, parameter: torch.Tensor, state: dict[Any, Any]) -> torch.Tensor:
        if parameter.dtype not in (torch.float16, torch.bfloat16):
            return parameter
        master = torch.nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
        if parameter in state:
            state[master] = {
                name: value.float() if torch.is_tensor(value) and value.dtype == parameter.dtype else value
                for name, value in state.pop(parameter).items()
            }
        self.parameters.append(parameter)
        self.masters.append(master)
        return master

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Move the model's gradients to the masters, adding to what is there; the model's are None afterwards."""
        fresh: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        added: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for parameter, master, buffer in zip(self.parameters, self.masters, self._gradients, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            parameter.grad = None
            if master.grad is None:
                master.grad = buffer
                into = fresh
            else:
                into = added
            into[0].append(buffer)
            into[1].append(gradient)
        if fresh[0]:
            torch._foreach_copy_(*fresh)
        if added[0]:
            torch._foreach_add_(*added)

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the masters into the model's parameters."""
        if self.masters:
            torch._foreach_copy_(self.parameters, self.masters)

    def state(self) -> list[torch.Tensor]:
        return [each.detach() for each in self.masters]

    @torch.no_grad()
    def load(self, saved: Sequence[torch.Tensor]) -> None:
        """Take up saved masters and round them into the model. Raises `ValueError` for another model's."""
        shapes = [tuple(each.shape) for each in saved]
        own = [tuple(each.shape) for each in self.masters]
        if shapes != own:
            raise ValueError("the saved master weights are not of this model: their number or shapes differ")
        for master, each in zip(self.masters, saved, strict=True):
            master.copy_(each)
        self.give_weights()
