"""One half-precision parameter with its float32 master and the float32 sum of its gradients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from amp_launcher.torch.precision.optimizer_weights import HALF


class TrackedParameter(nn.Parameter):
    """A parameter whose version counts changes made through `parameter.data` too.

    Torch counts in-place changes of a tensor, but the tensor that `.data` returns has a count of its own, so that
    `parameter.data.clamp_(-0.01, 0.01)` leaves no trace. Here `.data` is `detach()`: the same memory and count.
    It has no attributes of its own, since libraries rebuild parameters from their class and `__dict__`.

    A deep copy is a float32 parameter of the master's values, where there is one: copies are what averages are kept in.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            weight = master_of(self)
            if weight is None:
                memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
            else:
                weight.follow_model()
                memo[id(self)] = nn.Parameter(weight.saved.clone(), self.requires_grad)
        copy: nn.Parameter = memo[id(self)]
        return copy

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)
        torch.autograd.graph.increment_version(self)


def count_all_changes(parameter: torch.Tensor) -> None:
    """Change the parameter's class, in place; a subclass of `nn.Parameter` is left unchanged."""
    if type(parameter) is nn.Parameter:
        parameter.__class__ = TrackedParameter


def master_of(parameter: torch.Tensor) -> MasterWeight | None:
    return _known.get(id(parameter))  # which keeps its parameter, so that no other one has this id


class _Masters:
    """A model, as `AveragedModel` asks for what it averages."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def buffers(self) -> Iterator[torch.Tensor]:
        return (_unrounded(buffer) for buffer in self._model.buffers())

    def parameters(self) -> Iterator[torch.Tensor]:
        for parameter in self._model.parameters():
            weight = master_of(parameter)
            if weight is not None:
                weight.follow_model()
                yield weight.saved
            else:
                yield _unrounded(parameter)


def _unrounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def average_in_float32(model: nn.Module) -> None:
    """Have torch's `AveragedModel` average the masters of a cast model, or refuse to average in half precision.

    It asks for `model.parameters()`, which are rounded: their average may be off by more than the weights have moved.
    An average that is rounded itself stays where it is, since what a step adds to it rounds to nothing.
    """
    _cast.update(model.modules())
    _replace_update()


@functools.cache
def _replace_update() -> None:
    original = AveragedModel.update_parameters

    @functools.wraps(original)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        if _cast.isdisjoint(model.modules()):
            return original(self, model)
        if any(parameter.dtype in HALF for parameter in self.parameters()):
            raise RuntimeError(
                "this AveragedModel has half-precision weights, in which the small changes of an average round to "
                "nothing: make it before precision.prepare(model), and it averages in float32"
            )
        original(self, _Masters(model))

    AveragedModel.update_parameters = update_parameters


class MasterWeight:
    """Memory: 8 bytes an element, 4 for the master and, from the first step on, 4 for its gradient or the sum."""

    def __init__(self, parameter: torch.Tensor) -> None:
        count_all_changes(parameter)
        _known[id(parameter)] = self
        self.parameter = parameter
        self.master = torch.nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
        self.saved = self.master.detach()
        """The master as an optimizer's state has it."""
        self.accumulates = True
        """Whether gradients of several backwards may be summed here, where DDP's reduction doesn't see them."""
        self.zeroed_for_ddp = False
        """Whether `grad` becomes zeros during a backward: DDP requires a gradient that it has seen to stay."""
        self.sum: torch.Tensor | None = None
        self._synchronized: tuple[int, int] | None = None
        self._gradient: torch.Tensor | None = None
        self._gradient_version = 0
        self._buffer: torch.Tensor | None = None

    @property
    def buffer(self) -> torch.Tensor:
        """Memory for a float32 gradient."""
        if self._buffer is None:
            self._buffer = torch.empty_like(self.master)
        return self._buffer

    # Weights

    @torch.no_grad()
    def propose(self, values: Any) -> None:
        """Take these values for the master where, in the end, the parameter is their rounding."""
        if isinstance(values, torch.Tensor) and values.shape == self.master.shape and values is not self.saved:
            self.master.copy_(values)
            self._synchronized = None

    @torch.no_grad()
    def follow_model(self) -> None:
        """The parameter is what users change, so the master counts only where the parameter is its rounding. What is
        put back as it was loses nothing, and it doesn't matter whether model or optimizer loads first."""
        if self._versions != self._synchronized:
            values, master = self.parameter.detach(), self.master.detach()
            master.copy_(torch.where(master.to(values.dtype) == values, master, values.float()))
            self.mark_synchronized()

    def mark_synchronized(self) -> None:
        """The parameter is now the master's rounding."""
        self._synchronized = self._versions

    @property
    def _versions(self) -> tuple[int, int]:
        return self.parameter._version, self.master._version

    # Gradients

    def valid_sum(self) -> torch.Tensor | None:
        """The float32 sum that `parameter.grad` was rounded from; None without one, or where `grad` was changed.

        Where it was changed through `grad.data`, which leaves no trace, the sum has what was written there.
        """
        gradient = self.parameter.grad
        if gradient is not self._gradient or gradient is None or gradient._version != self._gradient_version:
            self.discard_sum()
            return None
        if self.sum is not None and gradient.layout is torch.strided:
            torch.where(self.sum.to(gradient.dtype) == gradient, self.sum, gradient, out=self.sum)
        return self.sum

    def set_sum(self, total: torch.Tensor) -> None:
        """`parameter.grad` is now the rounding of this sum."""
        gradient = self.parameter.grad
        assert gradient is not None
        self.sum, self._gradient, self._gradient_version = total, gradient, gradient._version

    def discard_sum(self) -> None:
        self.sum = self._gradient = None


_cast: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Modules of models that were cast to half precision."""
_known: weakref.WeakValueDictionary[int, MasterWeight] = weakref.WeakValueDictionary()
"""Those there are, by the id of their parameter."""
