"""Weights that an optimizer steps in place of the model's parameters: they are in its groups and its state during a
step only. Before and after it, both have the model's parameters, as without mixed precision."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

HALF = (torch.float16, torch.bfloat16)
FACTORS = ("step", "mu_product")
"""Of Adam and its like, NAdam's product of momenta."""


class SteppedWeights:
    """Those of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: list[list[torch.Tensor]] = []
        self._weights: list[list[torch.Tensor]] = []
        """As in the optimizer's groups."""
        self._weight_of: dict[torch.Tensor, torch.Tensor] = {}
        self._parameter_of: dict[torch.Tensor, torch.Tensor] = {}
        self._there = False

    @property
    def outdated(self) -> bool:
        """Whether groups or parameters were added to the optimizer, or removed, since `renew`; not within a step, where
        the groups have the weights."""
        if self._there:
            return False
        now = [list(map(id, group["params"])) for group in self._optimizer.param_groups]
        return now != [list(map(id, known)) for known in self._parameters]

    def renew(self, weight_of: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Take the weights of the parameters that the optimizer has now; one that has none is stepped itself."""
        for parameter in weight_of:
            if parameter not in self._weight_of and (entry := self._optimizer.state.get(parameter)):
                self._optimizer.state[parameter] = in_float32(entry, entry)  # Adagrad makes its state at once
        self._parameters = [list(group["params"]) for group in self._optimizer.param_groups]
        self._weights = [[weight_of.get(own, own) for own in parameters] for parameters in self._parameters]
        own = [parameter for parameters in self._parameters for parameter in parameters]
        self._weight_of = {parameter: weight_of[parameter] for parameter in own if parameter in weight_of}
        self._parameter_of = {weight: parameter for parameter, weight in self._weight_of.items()}

    def put(self) -> None:
        """Before a step."""
        self._there = True
        self._swap(self._weights, self._weight_of)

    def take(self) -> None:
        """After a step that `put` began, completed or not."""
        if self._there:
            self._swap(self._parameters, self._parameter_of)
        self._there = False

    def _swap(self, tensors: list[list[torch.Tensor]], keys: dict[torch.Tensor, torch.Tensor]) -> None:
        for number, params in enumerate(tensors):
            self._optimizer.param_groups[number]["params"][:] = params  # LBFGS keeps this list
        state = self._optimizer.state
        entries = [(keys.get(key, key), entry) for key, entry in state.items()]
        state.clear()
        state.update(entries)


def in_float32(loaded: Any, saved: Any) -> Any:
    """What an optimizer loaded, where it loaded it to, in the dtypes in which it was saved; half precision in
    float32."""
    if isinstance(saved, torch.Tensor) and saved.is_floating_point():
        return saved.to(loaded.device, torch.float32 if saved.dtype in HALF else saved.dtype)
    if isinstance(saved, dict):
        return {key: in_float32(loaded[key], value) for key, value in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(map(in_float32, loaded, saved))
    return loaded


def in_dtype_of(parameter: torch.Tensor, loaded: Any, saved: Any, key: str = "") -> Any:
    """What an optimizer loaded for a half-precision parameter that it steps itself, in the parameter's dtype, but for
    counts and factors: they keep the dtype in which they were saved. A single number is one where the parameter has
    more, or by its name."""
    if isinstance(saved, torch.Tensor) and saved.is_floating_point():
        factor = key in FACTORS or (parameter.dim() and not saved.dim())
        return saved.to(loaded.device) if factor else loaded.to(parameter.dtype)
    if isinstance(saved, dict):
        return {key: in_dtype_of(parameter, loaded[key], value, key) for key, value in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(map(functools.partial(in_dtype_of, parameter), loaded, saved))
    return loaded


def moves_nothing(optimizer: Optimizer) -> bool:
    """Whether a step would move no weight: its learning rates and gradients are zero, and there are some."""
    groups = optimizer.param_groups
    gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    still = all(group.get("lr") == 0 for group in groups)
    return still and bool(gradients) and not any(map(torch.any, gradients))
