"""Makes an optimizer step other tensors than the model's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

HALF = (torch.float16, torch.bfloat16)


def move_state(optimizer: Optimizer, parameter: torch.Tensor, weight: torch.Tensor) -> None:
    """Give `weight` the parameter's state, in float32. Some optimizers, Adagrad among them, create their state at
    construction."""
    if parameter in optimizer.state:
        optimizer.state[weight] = {
            name: value.float() if torch.is_tensor(value) and value.dtype in HALF else value
            for name, value in optimizer.state.pop(parameter).items()
        }


def clear_gradients_of(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """Make `optimizer.zero_grad` clear the gradients of the model's parameters too: these are what will be stepped.

    `parameters` may grow afterwards.
    """
    clear_own = optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        """The optimizer's own, over the model's gradients too."""
        clear_own(set_to_none)
        for parameter in parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]  # this optimizer's alone
