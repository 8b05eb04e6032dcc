"""Parameters whose version counts every in-place change, those through `.data` included."""

from __future__ import annotations

import torch
from torch import nn


class TrackedParameter(nn.Parameter):
    """A parameter whose version counts changes made through `parameter.data` too.

    Torch counts in-place changes of a tensor, but the tensor that `.data` returns has a count of its own, so that
    `parameter.data.clamp_(-0.01, 0.01)` leaves no trace. Here `.data` is `detach()`: the same memory and count.
    It has no attributes of its own, since libraries rebuild parameters from their class and `__dict__`.
    """

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        torch.autograd.graph.increment_version(self)


def count_all_changes(parameter: torch.Tensor) -> None:
    """Change the parameter's class, in place; a subclass of `nn.Parameter` is left unchanged."""
    if type(parameter) is nn.Parameter:
        parameter.__class__ = TrackedParameter
