"""torch's device: CUDA events for time, and what the result says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amp_launcher.torch.profiling import record_kernels
from amp_launcher.world.device import Device


class TorchDevice(Device):
    """On a GPU the time is between two CUDA events, read at the flush: nothing waits for them while steps run."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self._device = device

    def mark(self) -> Any:
        if self.kind != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1000 if self.kind == "cuda" else ended - began

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        """Scalars from the device, in one transfer; a step is an execution of its own in torch."""
        present = [value.detach() for value in values if isinstance(value, torch.Tensor)]
        moved = iter(torch.stack(present).double().tolist() if present else [])
        return [next(moved) if isinstance(value, torch.Tensor) else value for value in values]

    def record_kernels(self) -> Callable[[], float | None]:
        return record_kernels() if self.kind == "cuda" else super().record_kernels()

    def gpu_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def reset_gpu_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def gpu_name(self) -> str:
        return torch.cuda.get_device_name(self._device)

    def gpu_uuid(self) -> str | None:
        return str(getattr(torch.cuda.get_device_properties(self._device), "uuid", "")) or None

    def where(self) -> str:
        count = torch.get_num_threads()
        line = f"cpu, {count} thread{'s' * (count > 1)}"
        return f"torch {torch.__version__} on {f'{self._device}, {self.gpu_name()}' if self.kind == 'cuda' else line}"

    def framework_versions(self) -> dict[str, str | None]:
        cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
        return {
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": None if cudnn is None else str(cudnn),
        }
