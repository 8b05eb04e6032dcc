"""Float32 masters of half-precision parameters, and float32 sums of their gradients.

The model's own tensors, a parameter and its `grad`, are what users see and change; a master and a sum are the float32
values that these are rounded from. A change of the model's tensors (cleared, clamped, loaded) wins: a float32 value is
used only while torch's version counter says that its rounding is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from amp_launcher.torch.precision.master_weight import MasterWeight
from amp_launcher.torch.precision.optimizer_weights import HALF, clear_gradients_of, move_state

LARGE = 2**20
"""Elements in each weight from which one kernel for each keeps a GPU as busy as one kernel for a whole list."""


class Masters:
    """The masters of all optimizers of one `Precision`: one for each parameter, however many optimizers step it."""

    def __init__(self) -> None:
        self._weights: dict[torch.Tensor, MasterWeight] = {}
        self._by_optimizer: dict[Optimizer, list[MasterWeight]] = {}
        self._groups: dict[Optimizer, int] = {}
        """How many of an optimizer's groups have masters: others were added later."""
        self._shared: set[MasterWeight] = set()
        """Stepped by several optimizers."""
        self._accumulating: dict[MasterWeight, None] = {}
        """Those whose earlier gradients the running backward adds to."""
        self._reduced: list[tuple[MasterWeight, torch.Tensor]] = []

    def __contains__(self, optimizer: Optimizer) -> bool:
        return optimizer in self._by_optimizer

    def lacks_some(self, optimizer: Optimizer) -> bool:
        """Whether groups were added to the optimizer since `add`."""
        return len(optimizer.param_groups) != self._groups[optimizer]

    def get(self, parameter: torch.Tensor) -> MasterWeight | None:
        return self._weights.get(parameter)

    def add(
        self, optimizer: Optimizer, names: Mapping[torch.Tensor, str], unrounded: Mapping[torch.Tensor, torch.Tensor]
    ) -> None:
        """Make the optimizer step masters: they replace the parameters in its groups and its state. Again once groups
        were added to it.

        `unrounded` has the float32 weights that parameters were cast from.
        """
        weights: list[MasterWeight] = []
        for group in optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                if parameter.dtype not in HALF:
                    continue
                weight = self._weights.get(parameter)
                if weight is None:
                    name = names.get(parameter, f"unnamed.{len(self._weights)}")
                    weight = MasterWeight(parameter, name, _initial_values(parameter, unrounded.get(parameter)))
                    self._weights[parameter] = weight
                else:
                    self._shared.add(weight)
                move_state(optimizer, parameter, weight.master)
                group["params"][position] = weight.master
                weights.append(weight)
        self._by_optimizer.setdefault(optimizer, []).extend(weights)
        self._groups[optimizer] = len(optimizer.param_groups)
        clear_gradients_of(optimizer, [weight.parameter for weight in weights])

    # Weights

    def copy_model_to_masters(self, optimizer: Optimizer | None = None) -> None:
        """Follow changes of the model's weights: clamped, initialised, averaged, loaded. Only values that differ from
        their masters' roundings are copied, so that weights which were put back unchanged lose nothing."""
        with torch.no_grad():
            for weight in self._weights_of(optimizer):
                if weight.model_changed:
                    values = weight.parameter.detach()
                    master = weight.master.detach()
                    master.copy_(torch.where(master.to(values.dtype) == values, master, values.float()))
                    weight.mark_synchronized()

    @torch.no_grad()
    def copy_masters_to_model(self, optimizer: Optimizer | None = None) -> None:
        """Round the masters into the model's parameters."""
        weights = self._weights_of(optimizer)
        if weights:
            torch._foreach_copy_([weight.parameter for weight in weights], [weight.master for weight in weights])
        for weight in weights:
            weight.mark_synchronized()

    def _weights_of(self, optimizer: Optimizer | None) -> Sequence[MasterWeight]:
        return list(self._weights.values()) if optimizer is None else self._by_optimizer[optimizer]

    # Gradients

    @torch.no_grad()
    def begin_backward(self) -> None:
        """Move the gradients so far into float32 sums: torch would add half precision to half precision."""
        gradients, buffers = [], []
        self._accumulating, self._reduced = {}, []
        for weight in self._weights.values():
            gradient = weight.parameter.grad
            if gradient is None or not weight.accumulates:
                continue
            total = weight.valid_sum()
            if gradient.layout is not torch.strided:
                weight.sum = gradient.float() if total is None else total
            elif total is None or total is not weight.buffer:  # a reduction's memory is used again by the next one
                gradients.append(gradient if total is None else total)
                buffers.append(weight.buffer)
                weight.sum = weight.buffer
            weight.parameter.grad = torch.zeros_like(gradient) if weight.zeroed_for_ddp else None
            self._accumulating[weight] = None
        if buffers:
            torch._foreach_copy_(buffers, gradients)

    def accumulated_sum(self, weight: MasterWeight) -> torch.Tensor | None:
        """The sum of earlier gradients that the running backward adds to."""
        return weight.sum if weight in self._accumulating else None

    def set_reduced(self, weight: MasterWeight, mean: torch.Tensor) -> None:
        """The running backward reduces this gradient over the ranks into `mean`, the accumulated sum included."""
        self._reduced.append((weight, mean))

    @torch.no_grad()
    def end_backward(self) -> None:
        """After the backward, completed or not: add the new gradients to the sums, and round the sums into `grad`."""
        for weight, mean in self._reduced:
            if weight.parameter.grad is not None:
                weight.set_sum(mean)
            self._accumulating.pop(weight, None)
        fresh, sums = [], []
        for weight in self._accumulating:
            gradient, total = weight.parameter.grad, weight.sum
            assert total is not None
            if gradient is None:
                weight.parameter.grad = total.to(weight.parameter.dtype)
            elif gradient.layout is not torch.strided or total.layout is not torch.strided:
                sparse, other = (total, gradient) if gradient.layout is torch.strided else (gradient, total)
                weight.sum = other.float() + sparse.float()
                weight.parameter.grad = weight.sum.to(weight.parameter.dtype)
            else:
                fresh.append(gradient)
                sums.append(total)
        if fresh:
            torch._foreach_add_(sums, fresh)
            torch._foreach_copy_(fresh, sums)
        for weight in self._accumulating:
            assert weight.sum is not None
            weight.set_sum(weight.sum)
        self._accumulating, self._reduced = {}, []

    @torch.no_grad()
    def copy_grads_to_masters(self, optimizer: Optimizer) -> None:
        """Give the optimizer's masters the model's gradients in float32, for one step. The model keeps its own."""
        gradients, buffers = [], []
        for weight in self._by_optimizer[optimizer]:
            gradient = weight.parameter.grad
            total = weight.valid_sum()
            if gradient is None:
                weight.master.grad = None
            elif total is not None:
                weight.master.grad = total.clone() if weight in self._shared else total
            elif gradient.layout is not torch.strided:
                weight.master.grad = gradient.float()
            else:
                weight.master.grad = weight.buffer
                gradients.append(gradient)
                buffers.append(weight.buffer)
        if buffers:
            torch._foreach_copy_(buffers, gradients)

    def can_share_grads(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer can step the masters with the model's own half-precision gradients.

        SGD without momentum adds gradients of any dtype to the masters in float32, so that a copy in float32 is wasted
        work. On a GPU, for large weights, where that copy is much of the step; and without sums of several backwards.
        """
        weights = self._by_optimizer[optimizer]
        return (
            type(optimizer) is torch.optim.SGD
            and hasattr(torch.Tensor, "grad_dtype")  # before torch 2.10, a gradient has its weight's dtype
            and not any(
                group["momentum"] or group["weight_decay"] or group["fused"] or group["differentiable"]
                for group in optimizer.param_groups
            )
            and all(weight.master.is_cuda and weight.valid_sum() is None for weight in weights)
            and sum(weight.master.numel() for weight in weights) >= LARGE * len(weights)
        )

    def share_grads_with_masters(self, optimizer: Optimizer) -> None:
        """Make the model's gradients the masters', without a copy, for one step."""
        for group in optimizer.param_groups:
            group["foreach"] = False  # lists have to be of one dtype
        for weight in self._by_optimizer[optimizer]:
            weight.master.grad_dtype = None  # any
            weight.master.grad = weight.parameter.grad

    def clear_master_grads(self, optimizer: Optimizer) -> None:
        """After the step, which unscaled and clipped the masters' gradients: `grad` is no longer their rounding."""
        for weight in self._by_optimizer[optimizer]:
            weight.master.grad = None
            if weight not in self._shared:
                weight.discard_sum()

    # Saving and loading

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The masters by their parameters' names."""
        self.copy_model_to_masters()
        return {weight.name: weight.master.detach() for weight in self._weights.values()}

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Load saved masters and round them into the model. Raises `ValueError` for those of another model."""
        own = {weight.name: weight.master for weight in self._weights.values()}
        if names := differing(own, saved):
            raise ValueError(f"the saved master weights are another model's: {names} differ")
        for name, master in own.items():
            master.copy_(saved[name])
        self.copy_masters_to_model()


def differing(own: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """The first few names that only one of the two has, or whose tensors differ in shape; empty where all are alike."""
    shapes, others = ({name: getattr(tensor, "shape", None) for name, tensor in part.items()} for part in (own, saved))
    names = sorted(name for name in {*own, *saved} if name not in own or shapes[name] != others.get(name, "missing"))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _initial_values(parameter: torch.Tensor, unrounded: torch.Tensor | None) -> torch.Tensor:
    """The values that the parameter was cast from, unless its weights were changed since."""
    values = parameter.detach()
    if unrounded is not None and unrounded.shape == values.shape:
        unrounded = unrounded.to(values.device)
        if torch.equal(unrounded.to(values.dtype), values):
            return unrounded
    return values.float()
