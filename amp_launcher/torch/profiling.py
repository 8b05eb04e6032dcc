"""torch's own profiler, the GPU's kernels, and the range that NVIDIA's profilers record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from amp_launcher.settings import Profile


class FrameworkProfiler:
    """`amp_launcher.loop.profiling.Profiler`: a trace that Perfetto and TensorBoard open, one for each rank."""

    def __init__(self, device: torch.device, rank: int) -> None:
        self.trace = f"rank{rank}.pt.trace.json"
        self._cuda = device.type == "cuda"
        self._profile: profile | None = None

    def start(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._profile = profile(activities=activities)
        self._profile.start()

    def stop(self, folder: Path) -> Mapping[str, float]:
        assert self._profile is not None
        if self._cuda:
            torch.cuda.synchronize()
        self._profile.stop()
        self._profile.export_chrome_trace(str(folder / self.trace))
        kernels: Counter[str] = Counter()
        for event in _on_gpu(self._profile):
            kernels[event.name] += event.time_range.elapsed_us()
        return kernels


def record_kernels() -> Callable[[], float | None]:
    """`amp_launcher.world.device.Device.record_kernels` on a GPU. Waits for it at both ends."""
    torch.cuda.synchronize()
    recording = profile(activities=[ProfilerActivity.CUDA])
    recording.start()

    def stop() -> float | None:
        torch.cuda.synchronize()
        recording.stop()
        kernels = [event for event in _on_gpu(recording) if not event.name.startswith(_COPIES)]
        return covered((event.time_range.start, event.time_range.end) for event in kernels) / 1e6 or None

    return stop


_COPIES = ("Memcpy", "Memset")


def _on_gpu(ended: profile) -> Iterator[Any]:
    for event in ended.events() or ():
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            yield event


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals, each from a start to an end."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


class CudaRange:
    """The range that nsys and ncu record: from `cudaProfilerStart` to `cudaProfilerStop`."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def start(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.profiler.start()

    def stop(self, folder: Path) -> Mapping[str, float]:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        return {}


def make(asked: Profile, device: torch.device, rank: int) -> FrameworkProfiler | CudaRange | None:
    """The profiler that was asked for; None for none, and for one that needs nothing of the process."""
    if asked.tool == "framework":
        return FrameworkProfiler(device, rank)
    if asked.tool in ("nsys", "ncu") and device.type == "cuda":
        return CudaRange({"nsys": "nsys.nsys-rep", "ncu": "ncu.ncu-rep"}[asked.tool])
    return None
