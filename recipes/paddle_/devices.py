"""On what a run in Paddle runs: one process and one device."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
import paddle

from recipes.trainer.outcome import nvidia_driver, processor
from recipes.trainer.recorder import resident_memory
from recipes.trainer.world import Place, Ranks, visible_gpus
from recipes.typed import SettingsError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World(Ranks):
    """The one process of a job in Paddle."""

    kind: str
    """cpu or cuda."""
    places: tuple[Place, ...] = ()

    @property
    def rank(self) -> int:  # type: ignore[override]
        return 0

    @property
    def size(self) -> int:  # type: ignore[override]
        return 1

    def gather(self, value: T) -> list[T]:
        return [value]


def join(device: str, planned: int | None, environ: Mapping[str, str]) -> World:
    """Take the device (auto, cpu or cuda). Raises `SettingsError` for one that isn't there, and for several processes.

    Several would need `paddle.DataParallel`, whose order with `decorate` nobody could try here.
    """
    if int(environ.get("WORLD_SIZE", "1")) > 1 or (planned or 1) > 1:
        raise SettingsError("framework=paddle runs in one process on one device; say gpus=1", "gpus")
    kind = resolve(device)
    paddle.set_device("gpu:0" if kind == "cuda" else "cpu")
    visible = visible_gpus(paddle.device.cuda.device_count())
    return World(kind=kind, places=(Place(rank=0, host=socket.gethostname(), device=kind, gpu="", visible=visible),))


def resolve(device: str) -> str:
    """cpu or cuda. Raises `SettingsError` for a GPU that isn't there."""
    there = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if device == "auto":
        return "cuda" if there else "cpu"
    if device == "cuda" and not there:
        raise SettingsError("device=cuda: Paddle sees no CUDA GPU here; say device=cpu", "device")
    return device


def capability_of(kind: str) -> tuple[int, int] | None:
    """Compute capability of the GPU, None for a CPU."""
    return paddle.device.cuda.get_device_capability() if kind == "cuda" else None


class PaddleDevice:
    """`recipes.trainer.recorder.Device` in Paddle."""

    def __init__(self, kind: str) -> None:
        self._cuda = kind == "cuda"

    def mark(self) -> float:
        if self._cuda:
            paddle.device.synchronize()
        return time.perf_counter()

    def seconds(self, began: float, ended: float) -> float:
        return ended - began

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        return [each.item() if isinstance(each, paddle.Tensor) else each for each in values]

    def peak_memory(self) -> int:
        return int(paddle.device.cuda.max_memory_allocated()) if self._cuda else resident_memory()


def device_line(kind: str) -> str:
    return f"cuda, {paddle.device.cuda.get_device_name()}" if kind == "cuda" else "cpu"


def versions() -> dict[str, str | None]:
    cuda, cudnn = paddle.version.cuda(), paddle.version.cudnn()
    return {
        "python": platform.python_version(),
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "cuda": None if cuda == "False" else cuda,
        "cudnn": None if cudnn == "False" else cudnn,
    }


def hardware(kind: str) -> dict[str, str | None]:
    gpu = paddle.device.cuda.get_device_name() if kind == "cuda" else None
    return {"gpu": gpu, "uuid": None, "driver": nvidia_driver() if gpu else None, "cpu": processor()}
