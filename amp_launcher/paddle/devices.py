"""The devices of a run in Paddle, one for each process."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import paddle
from paddle import distributed, nn

from amp_launcher.typed import SettingsError
from amp_launcher.world.device import Device
from amp_launcher.world.world import ProcessGroup, RankInfo, check_placement, rank_and_size, visible_gpus

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World(ProcessGroup):
    """This process in the group that `paddle.distributed.launch` has started."""

    rank: int = 0
    size: int = 1
    kind: str
    """cpu or cuda."""
    members: tuple[RankInfo, ...] = ()

    def gather(self, value: T) -> list[T]:
        return _gather(value, self.size)

    def wrap(self, model: nn.Layer) -> nn.Layer:
        """The model in `paddle.DataParallel` where there are several ranks. Decorate it first: later Paddle refuses."""
        return paddle.DataParallel(model) if self.size > 1 else model

    def gradients(self, model: nn.Layer, last: bool) -> AbstractContextManager[Any]:
        """A context for a micro-batch's forward and backward: only the last one reduces gradients over the ranks."""
        if last or self.size == 1:
            return contextlib.nullcontext()
        alone: AbstractContextManager[Any] = model.no_sync()
        return alone


def join(device: str, planned: int | None, environ: Mapping[str, str]) -> World:
    """Set the device (auto, cpu or cuda) and join the other ranks, by the variables of `paddle.distributed.launch`.

    Raises `SettingsError` for a device that isn't there, `PlacementError` where ranks are missing or share a GPU.
    """
    rank, size = rank_and_size("paddle", environ)
    kind = resolve(device)
    number = int(environ.get("FLAGS_selected_gpus", "0").split(",")[0])
    paddle.set_device(f"gpu:{number}" if kind == "cuda" else "cpu")
    if size > 1:
        # Paddle's default is the GPU backend of its build, also on a CPU.
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "nccl" if kind == "cuda" else "gloo")
        distributed.init_parallel_env()
    visible = visible_gpus(paddle.device.cuda.device_count())
    gpu = str(number) if kind == "cuda" and size > 1 else ""
    own = RankInfo(rank=rank, host=socket.gethostname(), device=kind, gpu=gpu, visible=visible)
    world = World(rank=rank, size=size, kind=kind, members=tuple(_gather(own, size)))
    check_placement(world.members, planned)
    return world


def _gather(value: T, size: int) -> list[T]:
    if size == 1:
        return [value]
    values: list[T] = []
    distributed.all_gather_object(values, value)
    return values


def resolve(device: str) -> str:
    """cpu or cuda. Raises `SettingsError` for a GPU that isn't there."""
    available = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if device == "auto":
        return "cuda" if available else "cpu"
    if device == "cuda" and not available:
        raise SettingsError("device=cuda: Paddle sees no CUDA GPU here; say device=cpu")
    return device


def capability_of(kind: str) -> tuple[int, int] | None:
    """Compute capability of the GPU, None for a CPU. Raises `SettingsError` for a device that isn't there."""
    if kind not in ("cpu", "cuda"):
        raise SettingsError(f"device={kind} is not one of cpu, cuda")
    return paddle.device.cuda.get_device_capability() if resolve(kind) == "cuda" else None


class PaddleDevice(Device):
    """Paddle's device, and what the result says of it."""

    def wait(self) -> None:
        paddle.device.synchronize()

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        return [value.item() if isinstance(value, paddle.Tensor) else value for value in values]

    def gpu_memory(self) -> int:
        return int(paddle.device.cuda.max_memory_allocated())

    def reset_gpu_memory(self) -> None:
        paddle.device.cuda.reset_max_memory_allocated()

    def gpu_name(self) -> str:
        return str(paddle.device.cuda.get_device_name())

    def where(self) -> str:
        return f"paddle {paddle.__version__} on {device_line(self.kind)}"

    def framework_versions(self) -> dict[str, str | None]:
        cuda, cudnn = paddle.version.cuda(), paddle.version.cudnn()
        return {
            "paddle": paddle.__version__,
            "cuda": None if cuda == "False" else cuda,
            "cudnn": None if cudnn == "False" else cudnn,
        }


def device_line(kind: str) -> str:
    return f"cuda, {paddle.device.cuda.get_device_name()}" if kind == "cuda" else "cpu"
