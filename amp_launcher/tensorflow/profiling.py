"""TensorFlow's own profiler."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from amp_launcher.settings import Profile


class FrameworkProfiler:
    """`amp_launcher.loop.profiling.Profiler`: a trace for TensorBoard's profile plugin, one file for each process.

    TensorFlow names the files by second and host, so that processes on one host would overwrite each other's.
    """

    trace = "plugins/profile"

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._aside = ""

    def start(self) -> None:
        self._aside = tempfile.mkdtemp(prefix="profile-")
        tf.profiler.experimental.start(self._aside)

    def stop(self, folder: Path) -> Mapping[str, float]:
        tf.profiler.experimental.stop()
        kernels: Counter[str] = Counter()
        for path in [path for path in Path(self._aside, self.trace).rglob("*") if path.is_file()]:
            if path.name.endswith(".xplane.pb"):
                kernels.update(_kernels(path))
            path.rename(path.with_name(f"rank{self._rank}.{path.name}"))
        shutil.copytree(self._aside, folder, dirs_exist_ok=True)
        shutil.rmtree(self._aside)
        return kernels


def _kernels(path: Path) -> Counter[str]:
    """Microseconds of each kernel on the GPUs' streams. The other lines of a trace are sums of the same time."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    kernels: Counter[str] = Counter()
    for plane in space.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            if line.name.startswith("Stream"):
                for event in line.events:
                    kernels[plane.event_metadata[event.metadata_id].name] += event.duration_ps / 1e6
    return kernels


def make(settings: Profile, rank: int) -> FrameworkProfiler | None:
    """TensorFlow's profiler if the settings ask for it; NVIDIA's record the whole process from outside."""
    return FrameworkProfiler(rank) if settings.tool == "framework" else None
