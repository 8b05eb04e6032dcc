"""The network of `sharded_trainer`."""

from __future__ import annotations

import torch
from torch import nn

FEATURES = 12


class Net(nn.Module):
    """With what is hard to shard: tied weights, a buffer, sizes that ranks don't divide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, FEATURES, bias=False)
        self.third = nn.Linear(width, FEATURES, bias=False)
        self.third.weight = self.second.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(inputs)).tanh()
        return self.second(hidden) + self.third(hidden.square())
