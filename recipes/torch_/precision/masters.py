"""Float32 masters of half-precision parameters, and float32 sums of their gradients.

The model's own tensors, a parameter and its `grad`, are what users see and change; a master and a sum are the float32
values that these are the roundings of. Whatever was changed in the model since (cleared, clamped, loaded) is followed:
the float32 value is only taken for what it is while torch's version counter says that its rounding is untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.optim import Optimizer

from recipes.torch_.precision.tracked_parameter import count_all_changes

HALF = (torch.float16, torch.bfloat16)
LARGE = 2**20
"""From so many elements in each weight on, one kernel for each keeps a GPU as busy as one for a whole list."""


class Weight:
    """A half-precision parameter, its master, and the float32 sum of its gradients while there is one.

    Memory: 8 bytes an element, 4 for the master and, from the first step on, 4 for its gradient or the sum.
    """

    __slots__ = (
        "_buffer",
        "_version",
        "_visible",
        "_visible_version",
        "adds",
        "blank",
        "master",
        "name",
        "parameter",
        "total",
    )

    def __init__(self, parameter: torch.Tensor, name: str, start: torch.Tensor) -> None:
        """`start` has the master's first values, which round to the parameter's."""
        count_all_changes(parameter)
        self.parameter = parameter
        self.name = name
        self.master = torch.nn.Parameter(start, requires_grad=parameter.requires_grad)
        self.adds = True
        """Whether gradients of several backwards may be summed here, where DDP's reduction doesn't see them."""
        self.blank = False
        """Whether what is held leaves zeros in its place, since DDP doesn't let a gradient go that it has seen once."""
        self.total: torch.Tensor | None = None
        self._version = parameter._version
        self._visible: torch.Tensor | None = None
        self._visible_version = 0
        self._buffer: torch.Tensor | None = None

    @property
    def buffer(self) -> torch.Tensor:
        """Memory for a float32 gradient."""
        if self._buffer is None:
            self._buffer = torch.empty_like(self.master)
        return self._buffer

    @property
    def changed(self) -> bool:
        """Whether the parameter was changed by others since it last was the master's rounding."""
        return self.parameter._version != self._version

    def is_rounded(self) -> None:
        """The parameter is now what its master rounds to."""
        self._version = self.parameter._version

    def exact(self) -> torch.Tensor | None:
        """The float32 sum that `parameter.grad` is the rounding of; None where it is nothing but itself."""
        if self.total is None:
            return None
        gradient = self.parameter.grad
        if gradient is None or gradient is not self._visible or gradient._version != self._visible_version:
            self.forget()
        return self.total

    def stands_for(self, total: torch.Tensor) -> None:
        """`parameter.grad` is now the rounding of this sum."""
        gradient = self.parameter.grad
        assert gradient is not None
        self.total, self._visible, self._visible_version = total, gradient, gradient._version

    def forget(self) -> None:
        self.total = self._visible = None


class Masters:
    """The masters of all optimizers of one `Precision`: one for each parameter, however many optimizers step it."""

    def __init__(self) -> None:
        self._weights: dict[torch.Tensor, Weight] = {}
        self._of: dict[Optimizer, list[Weight]] = {}
        self._shared: set[Weight] = set()
        self._held: dict[Weight, None] = {}
        self._reduced: list[tuple[Weight, torch.Tensor]] = []

    def __contains__(self, optimizer: Optimizer) -> bool:
        return optimizer in self._of

    def of(self, parameter: torch.Tensor) -> Weight | None:
        return self._weights.get(parameter)

    def add(
        self, optimizer: Optimizer, names: Mapping[torch.Tensor, str], unrounded: Mapping[torch.Tensor, torch.Tensor]
    ) -> None:
        """Have the optimizer step masters: its groups and state hold them from then on, in the parameters' stead.

        `unrounded` has the float32 weights that parameters were cast from.
        """
        found: list[Weight] = []
        for group in optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                if parameter.dtype not in HALF:
                    continue
                weight = self._weights.get(parameter)
                if weight is None:
                    name = names.get(parameter, f"unnamed.{len(self._weights)}")
                    weight = Weight(parameter, name, _start(parameter, unrounded.get(parameter)))
                    self._weights[parameter] = weight
                else:
                    self._shared.add(weight)
                _move_state(optimizer, parameter, weight.master)
                group["params"][position] = weight.master
                found.append(weight)
        self._of[optimizer] = found
        clear = optimizer.zero_grad

        def zero_grad(set_to_none: bool = True) -> None:
            """The optimizer's own, over the model's gradients too: they are what will be stepped."""
            clear(set_to_none)
            for each in found:
                if set_to_none:
                    each.parameter.grad = None
                elif each.parameter.grad is not None:
                    each.parameter.grad.zero_()

        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]

    # Weights

    def follow(self, optimizer: Optimizer | None = None) -> None:
        """Take up what others made of the model's weights: clamped, drawn anew, averaged, loaded. Only values that
        their masters don't round to are taken, so that what was put back as it was loses nothing."""
        changed = [each for each in self._those_of(optimizer) if each.changed]
        with torch.no_grad():
            for each in changed:
                weights = each.parameter.detach()
                master = each.master.detach()
                master.copy_(torch.where(master.to(weights.dtype) == weights, master, weights.float()))
                each.is_rounded()

    @torch.no_grad()
    def give_weights(self, optimizer: Optimizer | None = None) -> None:
        """Round the masters into the model's parameters."""
        weights = self._those_of(optimizer)
        if weights:
            torch._foreach_copy_([each.parameter for each in weights], [each.master for each in weights])
        for each in weights:
            each.is_rounded()

    def _those_of(self, optimizer: Optimizer | None) -> Sequence[Weight]:
        return list(self._weights.values()) if optimizer is None else self._of[optimizer]

    # Gradients

    @torch.no_grad()
    def hold(self) -> None:
        """Before a backward: put gradients that are there aside, in float32: torch would add half to half."""
        visible, sums = [], []
        self._held, self._reduced = {}, []
        for each in self._weights.values():
            gradient = each.parameter.grad
            if gradient is None or not each.adds:
                continue
            total = each.exact()
            if gradient.layout is not torch.strided:
                each.total = gradient.float() if total is None else total
            elif total is None or total is not each.buffer:  # a reduction's memory is the next one's
                visible.append(gradient if total is None else total)
                sums.append(each.buffer)
                each.total = each.buffer
            each.parameter.grad = torch.zeros_like(gradient) if each.blank else None
            self._held[each] = None
        if sums:
            torch._foreach_copy_(sums, visible)

    def held(self, weight: Weight) -> torch.Tensor | None:
        """The sum of this gradient that the running backward is to add to."""
        return weight.total if weight in self._held else None

    def reduced(self, weight: Weight, mean: torch.Tensor) -> None:
        """The running backward reduces this gradient over the ranks: `mean` will be it, what was held included."""
        self._reduced.append((weight, mean))

    @torch.no_grad()
    def add_held(self) -> None:
        """After the backward, finished or not: add to what was held what came, and show the sums' roundings."""
        for weight, mean in self._reduced:
            if weight.parameter.grad is not None:
                weight.stands_for(mean)
            self._held.pop(weight, None)
        fresh, sums = [], []
        for each in self._held:
            gradient, total = each.parameter.grad, each.total
            assert total is not None
            if gradient is None:
                each.parameter.grad = total.to(each.parameter.dtype)
            elif gradient.layout is not torch.strided or total.layout is not torch.strided:
                sparse, other = (total, gradient) if gradient.layout is torch.strided else (gradient, total)
                each.total = other.float() + sparse.float()
                each.parameter.grad = each.total.to(each.parameter.dtype)
            else:
                fresh.append(gradient)
                sums.append(total)
        if fresh:
            torch._foreach_add_(sums, fresh)
            torch._foreach_copy_(fresh, sums)
        for each in self._held:
            assert each.total is not None
            each.stands_for(each.total)
        self._held, self._reduced = {}, []

    @torch.no_grad()
    def take_gradients(self, optimizer: Optimizer) -> None:
        """Give the optimizer's masters the model's gradients in float32, for one step. The model keeps its own."""
        copied, copies = [], []
        for each in self._of[optimizer]:
            gradient = each.parameter.grad
            total = each.exact()
            if gradient is None:
                each.master.grad = None
            elif total is not None:
                each.master.grad = total.clone() if each in self._shared else total
            elif gradient.layout is not torch.strided:
                each.master.grad = gradient.float()
            else:
                each.master.grad = each.buffer
                copied.append(gradient)
                copies.append(each.buffer)
        if copied:
            torch._foreach_copy_(copies, copied)

    def lends(self, optimizer: Optimizer) -> bool:
        """Whether the model's own gradients can be lent: SGD without momentum adds them to the masters in float32,
        whatever their dtype, so that a copy in float32 would be bytes moved for nothing. On a GPU, of large weights,
        where these bytes are what the step's time goes into; and where no sum of several backwards is there."""
        weights = self._of[optimizer]
        return (
            type(optimizer) is torch.optim.SGD
            and hasattr(torch.Tensor, "grad_dtype")  # before torch 2.10, a gradient has its weight's dtype
            and not any(
                group["momentum"] or group["weight_decay"] or group["fused"] or group["differentiable"]
                for group in optimizer.param_groups
            )
            and all(each.master.is_cuda and each.exact() is None for each in weights)
            and sum(each.master.numel() for each in weights) >= LARGE * len(weights)
        )

    def lend_gradients(self, optimizer: Optimizer) -> None:
        """Give the model's gradients to the masters as they are, for one step."""
        for group in optimizer.param_groups:
            group["foreach"] = False  # lists have to be of one dtype
        for each in self._of[optimizer]:
            each.master.grad_dtype = None  # of any
            each.master.grad = each.parameter.grad

    def drop_gradients(self, optimizer: Optimizer) -> None:
        """After the step: what the masters had is unscaled and clipped, and no longer what the model's rounds."""
        for each in self._of[optimizer]:
            each.master.grad = None
            if each not in self._shared:
                each.forget()

    # Saved and taken up again

    def state(self) -> dict[str, torch.Tensor]:
        """The masters by their parameters' names."""
        self.follow()
        return {each.name: each.master.detach() for each in self._weights.values()}

    @torch.no_grad()
    def load(self, saved: Mapping[str, torch.Tensor] | Sequence[Sequence[torch.Tensor]]) -> None:
        """Take up saved masters and round them into the model. Raises `ValueError` for those of another model.

        Lists, one for each optimizer, are how masters were saved before they had names.
        """
        named = saved if isinstance(saved, Mapping) else self._by_position(saved)
        own = {each.name: each.master for each in self._weights.values()}
        differing = sorted(
            {
                *own.keys() ^ named.keys(),
                *(name for name in own.keys() & named.keys() if own[name].shape != named[name].shape),
            }
        )
        if differing:
            raise ValueError(f"the saved master weights are another model's: {_some(differing)} differ")
        for name, master in own.items():
            master.copy_(named[name])
        self.give_weights()

    def _by_position(self, saved: Iterable[Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
        lists = list(saved)
        if [len(each) for each in lists] != [len(each) for each in self._of.values()]:
            raise ValueError("the saved master weights are another model's: their number differs")
        return {
            weight.name: each
            for weights, masters in zip(self._of.values(), lists, strict=True)
            for weight, each in zip(weights, masters, strict=True)
        }


def _start(parameter: torch.Tensor, unrounded: torch.Tensor | None) -> torch.Tensor:
    """What the parameter was cast from, unless it has been given other weights since."""
    weights = parameter.detach()
    if unrounded is not None and unrounded.shape == weights.shape:
        unrounded = unrounded.to(weights.device)
        if torch.equal(unrounded.to(weights.dtype), weights):
            return unrounded
    return weights.float()


def _move_state(optimizer: Optimizer, parameter: torch.Tensor, master: torch.Tensor) -> None:
    """Some optimizers, Adagrad among them, make their state at once."""
    if parameter in optimizer.state:
        optimizer.state[master] = {
            name: value.float() if torch.is_tensor(value) and value.dtype in HALF else value
            for name, value in optimizer.state.pop(parameter).items()
        }


def _some(names: Sequence[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
