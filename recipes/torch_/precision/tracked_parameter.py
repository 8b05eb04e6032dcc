"""Parameters whose every change in place can be seen, the one by way of `.data` included."""

from __future__ import annotations

import torch
from torch import nn


class FollowedParameter(nn.Parameter):
    """A parameter whose version counts changes made through `parameter.data` too.

    Torch counts what is done to a tensor in place, but gives the tensor that `.data` returns a count of its own, so
    that `parameter.data.clamp_(-0.01, 0.01)` leaves no trace. Here `.data` is `detach()`: the same memory, one count.
    It holds no attributes of its own, since libraries rebuild parameters from their class and `__dict__`.
    """

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        torch.autograd.graph.increment_version(self)


def count_all_changes(parameter: torch.Tensor) -> None:
    """From now on. The parameter stays the same object; one of a class of its own is left as it is."""
    if type(parameter) is nn.Parameter:
        parameter.__class__ = FollowedParameter
