"""Float32 masters of half-precision parameters, and float32 sums of their gradients.

The model's own tensors, a parameter and its `grad`, are what users see and change; a master and a sum are the float32
values that these are rounded from. A change of the model's tensors (cleared, clamped, loaded) wins: a float32 value is
used only where its rounding is what the model has.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from amp_launcher.shown import some
from amp_launcher.torch.precision.master_weight import MasterWeight
from amp_launcher.torch.precision.optimizer_weights import HALF, SteppedWeights
from amp_launcher.torch.precision.saved_state import MASTER, stepped_entries

LARGE = 2**20
"""Elements in each weight from which one kernel for each keeps a GPU as busy as one kernel for a whole list."""


class Masters:
    """The masters of all optimizers of one `Precision`: one for each parameter, however many optimizers step it."""

    def __init__(self) -> None:
        self._weights: dict[torch.Tensor, MasterWeight] = {}
        self._by_optimizer: dict[Optimizer, list[MasterWeight]] = {}
        self._stepped: dict[Optimizer, SteppedWeights] = {}
        self._shared: set[MasterWeight] = set()
        """Stepped by several optimizers."""
        self._accumulating: dict[MasterWeight, None] = {}
        """Those whose earlier gradients the running backward adds to."""
        self._reduced: list[tuple[MasterWeight, torch.Tensor]] = []

    def __contains__(self, optimizer: Optimizer) -> bool:
        return optimizer in self._by_optimizer

    def outdated(self) -> list[Optimizer]:
        """The optimizers to which parameters were added, or from which some were removed, since `add`."""
        return [optimizer for optimizer, stepped in self._stepped.items() if stepped.outdated]

    def get(self, parameter: torch.Tensor) -> MasterWeight | None:
        return self._weights.get(parameter)

    def add(self, optimizer: Optimizer, unrounded: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Make masters of the half-precision parameters that the optimizer has. Again where these are others.

        `unrounded` has the float32 weights that parameters were cast from.
        """
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        weights = []
        for parameter in own:
            if parameter.dtype in HALF:
                weight = self._weights.get(parameter)
                if weight is None:
                    weight = self._weights[parameter] = MasterWeight(parameter)
                    weight.propose(unrounded.get(parameter))
                weights.append(weight)
        self._by_optimizer[optimizer] = weights
        if optimizer not in self._stepped:
            _refuse_without_masters(optimizer, weights)
            self._stepped[optimizer] = SteppedWeights(optimizer)
        for weight in weights:
            _refuse_rounded(optimizer.state.get(weight.parameter))
        self._stepped[optimizer].renew({weight.parameter: weight.master for weight in weights})
        steppings = collections.Counter(weight for weights in self._by_optimizer.values() for weight in weights)
        self._shared = {weight for weight, count in steppings.items() if count > 1}
        self.take_loaded(optimizer)
        self.give(optimizer)

    # Weights

    def take_loaded(self, optimizer: Optimizer) -> None:
        """Follow what the optimizer's state has as masters, where it is another's, and take it out of the state."""
        state = optimizer.state
        for parameter in [key for key in state if isinstance(key, torch.Tensor)]:
            entry, weight = state[parameter], self._weights.get(parameter)
            if weight is None and parameter.dtype in HALF:
                continue  # added to the optimizer since its last step
            saved = entry.pop(MASTER, None)
            if weight is not None:
                weight.propose(saved)
            if not entry:
                del state[parameter]  # optimizers initialize what is empty

    def give(self, optimizer: Optimizer) -> None:
        """Put the masters into the optimizer's state, where it is not to be initialized any more."""
        for weight in self._by_optimizer[optimizer]:
            if entry := optimizer.state.get(weight.parameter):
                entry[MASTER] = weight.saved

    def follow_model(self, optimizer: Optimizer | None = None) -> None:
        """Follow changes of the model's weights: clamped, initialised, averaged, loaded."""
        for weight in self._weights.values() if optimizer is None else self._by_optimizer[optimizer]:
            weight.follow_model()

    def put(self, optimizer: Optimizer) -> None:
        """Make the optimizer step masters: they replace the parameters in its groups and its state."""
        self.take_loaded(optimizer)
        self.follow_model(optimizer)
        self._stepped[optimizer].put()

    def take(self, optimizer: Optimizer) -> None:
        """After the step, completed or not: the optimizer has the model's parameters again."""
        self._stepped[optimizer].take()
        for weight in self._by_optimizer[optimizer]:
            weight.master.grad = None
        self.give(optimizer)

    def loaded(self, optimizer: Optimizer) -> None:
        """The optimizer has loaded a state."""
        self.take_loaded(optimizer)
        self.give(optimizer)

    @torch.no_grad()
    def round(self, optimizer: Optimizer) -> None:
        """Round the stepped masters into the model's parameters."""
        weights = self._by_optimizer[optimizer]
        if weights:
            torch._foreach_copy_([weight.parameter for weight in weights], [weight.master for weight in weights])
        for weight in weights:
            weight.mark_synchronized()

    def unstepped(self, optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor]]:
        """The masters that the optimizer's state doesn't have, by group and position."""
        found: dict[int, dict[str, torch.Tensor]] = {}
        for number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                weight = self._weights.get(parameter)
                if weight is not None and not optimizer.state.get(parameter):
                    found.setdefault(number, {})[str(position)] = weight.saved
        return found

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
            elif total is not weight.buffer:  # a reduction's memory is used again by the next one
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

    def discard_sums(self, optimizer: Optimizer) -> None:
        """After the step, which unscaled and clipped the masters' gradients: `grad` is no longer their rounding."""
        for weight in self._by_optimizer[optimizer]:
            if weight not in self._shared:
                weight.discard_sum()


def _refuse_rounded(entry: Mapping[str, Any] | None) -> None:
    if entry and MASTER in entry and entry[MASTER].dtype in HALF:
        raise RuntimeError(
            "the optimizer loaded its state after the model was cast, and torch rounded the masters in it: load it "
            "before both or after both"
        )


def _refuse_without_masters(optimizer: Optimizer, weights: list[MasterWeight]) -> None:
    """Where a plain optimizer loaded what o2 saved by `torch.distributed.checkpoint`, which reads only what it finds in
    the state that it loads into: moments without masters, beside weights that are all rounded already."""
    entries = stepped_entries(optimizer, (weight.parameter for weight in weights))
    if not entries or any(MASTER in entry for entry in entries):
        return
    stepped = [weight for weight in weights if optimizer.state.get(weight.parameter)]
    loaded = any(not torch.equal(weight.master.to(weight.parameter.dtype), weight.parameter) for weight in stepped)
    if loaded or all(torch.equal(weight.master, weight.parameter.float()) for weight in stepped):
        raise RuntimeError(
            "the optimizer has a state without masters, and the model's weights are rounded already, as "
            "torch.distributed.checkpoint leaves them where it loads what o2 saved before precision.prepare: load it "
            "after model, optimizer = precision.prepare(model, optimizer)"
        )


def differing(own: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """The first few names that only one of the two has, or whose tensors differ in shape; empty where all are alike."""
    shapes, others = ({name: getattr(tensor, "shape", None) for name, tensor in part.items()} for part in (own, saved))
    names = sorted(name for name in {*own, *saved} if name not in own or shapes[name] != others.get(name, "missing"))
    return some(names)
