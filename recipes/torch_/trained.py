"""What training changes, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recipes.torch_.precision import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training changes: the cast model without wrappers, its optimizers, and the precision's own state."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "precision": self.precision.state_dict(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        for optimizer, each in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.precision.load_state_dict(saved["precision"])
