"""The device of each process, how the processes meet, and repeatable arithmetic."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
import torch
from torch import distributed, nn

from amp_launcher.torch.precision.running_statistics import broadcast_statistics
from amp_launcher.world import cgroup_limits
from amp_launcher.world.world import ProcessGroup, RankInfo, check_placement, visible_gpus

T = TypeVar("T")
_LEFT: list[Any] = []
"""Process groups that were left. A model under DDP may hold the last reference to one and free it while it holds the
interpreter's lock. The group would wait for Gloo's threads, and these for the lock, to free a tensor: for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World(ProcessGroup):
    """This process among those of the job. Talk between ranks about the job itself is on the CPU, over gloo."""

    rank: int
    size: int
    device: torch.device
    members: tuple[RankInfo, ...] = ()
    gpus: Any = None
    """NCCL's process group, for gradients; None on a CPU or alone."""
    mesh: Any = None
    """The ranks as a device mesh, over which models are sharded; None where they are not."""

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        holder = [value]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        return _gather(value, self.size)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over the ranks, on every rank."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total)
        return total.tolist()

    @property
    def fused(self) -> bool | None:
        """SGD's `fused`: on a GPU one kernel steps, and skips an overflow without the host's waiting for it. On a CPU
        it is torch's own choice."""
        return True if self.device.type == "cuda" else None

    def pinned(self, array: numpy.ndarray) -> torch.Tensor:
        """The array as a tensor, in memory that a GPU can copy from by itself."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model in DistributedDataParallel where there are several ranks. Cast it first."""
        if self.size == 1:
            return model
        return nn.parallel.DistributedDataParallel(model, process_group=self.gpus)

    def gradients(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around one micro-batch's forward and backward: only the last of a step reduces gradients over the ranks.

        Sharded ones are reduced each time and added up in float32 shards: unreduced they would be as large as the model
        on every rank.
        """
        if last or self.size == 1 or self.mesh is not None:
            return contextlib.nullcontext()
        return model.no_sync()  # wrapped by DDP

    def agree_on_statistics(self, model: nn.Module) -> None:
        """Copy the running statistics of rank 0's norms to every rank, whose own are of its own samples. Collective."""
        if self.size > 1:
            broadcast_statistics(model, self.gpus)

    def leave(self) -> None:
        """Wait for the other ranks to get here, and part. The process is to end without finalizing the interpreter."""
        if self.size > 1 or self.mesh is not None:
            distributed.barrier()
            _LEFT.append(distributed.group.WORLD)
            distributed.destroy_process_group()


def join(device: str, expected_size: int | None, environ: Mapping[str, str], *, sharded: bool = False) -> World:
    """Meet the other ranks of the job, as torchrun's variables describe them, and check where everyone is.

    `device` is auto, cpu or cuda; `expected_size` the number of ranks that was planned, None where nobody said;
    `sharded` says that models will be sharded over the ranks, be it over one.
    Raises `PlacementError` with a table of all ranks, on every rank alike.
    """
    rank, size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if (threads := cgroup_limits.threads("OMP_NUM_THREADS")) is not None:
        torch.set_num_threads(threads)
    if size > 1:
        distributed.init_process_group("gloo")
    elif sharded:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    mine = torch.device(kind, int(environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
    members = _gather(rank_info(rank, mine, environ), size)
    check_placement(members, expected_size)
    if kind == "cuda":
        torch.cuda.set_device(mine)
    gpus = distributed.new_group(backend="nccl") if (size > 1 or sharded) and kind == "cuda" else None
    mesh = None
    if sharded:
        from torch.distributed.device_mesh import DeviceMesh  # slow to import, and rarely needed

        mesh = DeviceMesh.from_group(gpus or distributed.group.WORLD, kind)
    return World(rank=rank, size=size, device=mine, members=tuple(members), gpus=gpus, mesh=mesh)


def rank_info(rank: int, device: torch.device, environ: Mapping[str, str]) -> RankInfo:
    gpu, problem = "", ""
    count = torch.cuda.device_count()
    if device.type == "cuda":
        if device.index < count:
            properties = torch.cuda.get_device_properties(device)
            gpu = str(getattr(properties, "uuid", "")) or f"GPU {visible_gpus(count, environ)}[{device.index}]"
        else:
            problem = f"no {device} here: torch sees {count} GPUs" if count else "torch sees no CUDA GPU here"
    return RankInfo(
        rank=rank,
        host=socket.gethostname(),
        device=str(device),
        gpu=gpu,
        visible=visible_gpus(count, environ),
        problem=problem,
    )


def make_repeatable(deterministic: bool) -> None:
    """Have torch choose only kernels whose results repeat bit by bit, or let it choose the fastest."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs a pass over each tensor


def seed_rank(seed: int, rank: int) -> None:
    """Give each rank random numbers of its own, for dropout; weights were drawn from the seed that all share."""
    digest = hashlib.sha256(f"{seed} {rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big"))


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's generators: the CPU's, and this rank's GPU's."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _gather(value: T, size: int) -> list[T]:
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    distributed.all_gather_object(values, value)
    return values
