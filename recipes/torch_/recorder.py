"""What torch knows of its device while steps are recorded.

On a GPU the time is between two CUDA events, read at the flush; on a CPU it is `perf_counter`'s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from recipes.trainer.recorder import resident_memory


class TorchDevice:
    """`recipes.trainer.recorder.Device` in torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1000 if self._cuda else ended - began

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        """Scalars from the device, in one transfer; a step is an execution of its own in torch."""
        present = [each.detach() for each in values if isinstance(each, torch.Tensor)]
        moved = iter(torch.stack(present).double().tolist() if present else [])
        return [next(moved) if isinstance(each, torch.Tensor) else each for each in values]

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._cuda else resident_memory()
