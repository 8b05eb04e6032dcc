"""TensorFlow's own profiler."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from recipes.settings import Profile


class FrameworkProfiler:
    """`recipes.trainer.profiling.Profiler`: what TensorBoard's profile plugin opens, one file for each process.

    TensorFlow names them by second and host, by which processes on one host would overwrite one another's.
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
        for path in [each for each in Path(self._aside, self.trace).rglob("*") if each.is_file()]:
            if path.name.endswith(".xplane.pb"):
                kernels.update(_kernels(path))
            path.rename(path.with_name(f"rank{self._rank}.{path.name}"))
        shutil.copytree(self._aside, folder, dirs_exist_ok=True)
        shutil.rmtree(self._aside)
        return kernels


def _kernels(path: Path) -> Counter[str]:
    """Microseconds of each kernel on the GPUs' streams: what lies on other lines is the same time, summed up."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    found: Counter[str] = Counter()
    for plane in space.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            if line.name.startswith("Stream"):
                for event in line.events:
                    found[plane.event_metadata[event.metadata_id].name] += event.duration_ps / 1e6
    return found


def make(asked: Profile, rank: int) -> FrameworkProfiler | None:
    """The profiler that was asked for; None for none, and for NVIDIA's, which record all of a TensorFlow process."""
    return FrameworkProfiler(rank) if asked.tool == "framework" else None
