"""torch's own profiler, and the range that NVIDIA's profilers record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

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
        for event in self._profile.events() or ():
            if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
                kernels[event.name] += event.time_range.elapsed_us()
        return kernels


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
