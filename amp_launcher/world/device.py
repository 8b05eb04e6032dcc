"""A framework's device in this process: time, memory and values on it, and what the result says of it."""

from __future__ import annotations

import contextlib
import platform
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Device(ABC):
    """The GPU or CPU on which this process computes."""

    def __init__(self, kind: str) -> None:
        """`kind` is cpu or cuda."""
        self.kind = kind

    @abstractmethod
    def wait(self) -> None:
        """Wait until the GPU has done everything in its queue."""

    @abstractmethod
    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        """The values on the host, one after another: `count` of each, and that many None for a None."""

    @abstractmethod
    def gpu_memory(self) -> int:
        """Peak bytes allocated on the GPU since the last `reset_gpu_memory`."""

    @abstractmethod
    def reset_gpu_memory(self) -> None:
        """Begin the GPU's peak anew, at what is allocated now."""

    @abstractmethod
    def gpu_name(self) -> str: ...

    @abstractmethod
    def where(self) -> str:
        """The framework's version and the device, for people."""

    @abstractmethod
    def framework_versions(self) -> dict[str, str | None]:
        """Versions of the framework and of its CUDA libraries, by name."""

    def gpu_uuid(self) -> str | None:
        """The GPU's own identity, where the framework knows it."""
        return None

    def mark(self) -> Any:
        """A time stamp in the device's queue, or once that is empty."""
        if self.kind == "cuda":
            self.wait()
        return time.perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two time stamps."""
        return float(ended - began)

    def record_kernels(self) -> Callable[[], float | None]:
        """Record the GPU's kernels from now on. What is returned ends the recording, and gives the seconds in which at
        least one of them ran; None where nothing was recorded, as on a CPU."""
        return lambda: None

    def peak_memory(self) -> int:
        """Peak bytes since the last reset: allocated on a GPU, resident in this process on a CPU."""
        return self.gpu_memory() if self.kind == "cuda" else resident_memory()

    def reset_peak_memory(self) -> None:
        """Begin the peak anew; without effect on a CPU whose kernel refuses to."""
        if self.kind == "cuda":
            self.reset_gpu_memory()
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM, and with it getrusage's ru_maxrss

    def versions(self) -> dict[str, str | None]:
        """result.json's "versions"."""
        numpy = getattr(sys.modules.get("numpy"), "__version__", None)
        return {"python": platform.python_version(), "numpy": numpy, **self.framework_versions()}

    def hardware(self) -> dict[str, str | None]:
        """result.json's "hardware"."""
        if self.kind != "cuda":
            return {"gpu": None, "uuid": None, "driver": None, "cpu": processor()}
        return {"gpu": self.gpu_name(), "uuid": self.gpu_uuid(), "driver": nvidia_driver(), "cpu": processor()}


def resident_memory() -> int:
    """Peak resident bytes of this process since the last reset."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage's, by platform
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def processor() -> str | None:
    """The CPU's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def nvidia_driver() -> str | None:
    """The version of NVIDIA's kernel driver, where it is loaded."""
    try:
        return Path("/sys/module/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
