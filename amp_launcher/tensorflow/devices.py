"""The devices of each process, how the processes join, and reproducible arithmetic.

One process drives all GPUs of its node, by `MirroredStrategy`. Several nodes use `MultiWorkerMirroredStrategy`, with
one process each; they find each other by the variable TF_CONFIG.
"""

from __future__ import annotations

import functools
import os
import pickle
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import numpy
import tensorflow as tf

from amp_launcher.tensorflow.hardware import kind_of
from amp_launcher.world import cgroup_limits, rendezvous
from amp_launcher.world.world import (
    PlacementError,
    ProcessGroup,
    RankInfo,
    check_placement,
    table,
    visible_gpus,
    workers,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World(ProcessGroup):
    """This process in the group of the job's processes, and its devices."""

    rank: int
    size: int
    kind: str
    """cpu or cuda."""
    strategy: tf.distribute.Strategy
    members: tuple[RankInfo, ...] = ()
    """One for each device of the job."""

    @property
    def local(self) -> int:
        """Devices of this process."""
        return self.devices // self.size

    @property
    def devices(self) -> int:
        """Devices of all processes."""
        return int(self.strategy.num_replicas_in_sync)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on every rank; by the strategy's own collectives."""
        if self.size == 1:
            return [value]
        content = numpy.frombuffer(pickle.dumps(value), numpy.uint8)
        lengths = self._all_gather(numpy.array([len(content)], numpy.float32))
        contents = self._all_gather(content.astype(numpy.float32)).astype(numpy.uint8)
        ends = numpy.cumsum(lengths).astype(int)
        return [pickle.loads(part.tobytes()) for part in numpy.split(contents, ends[:-1])[:: self.local]]

    def _all_gather(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """The numbers of all devices, concatenated. They are floats, which all collectives support."""
        gathered = _gather_function(self.strategy)(tf.constant(numbers, tf.float32))
        return self.strategy.experimental_local_results(gathered)[0].numpy()


@functools.cache
def _gather_function(strategy: tf.distribute.Strategy) -> Any:
    def gather(numbers: tf.Tensor) -> tf.Tensor:
        own = tf.identity(numbers)  # on this replica's device; an argument is on none
        return tf.distribute.get_replica_context().all_gather(own, axis=0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False)
    def run(numbers: tf.Tensor) -> Any:
        return strategy.run(gather, (numbers,))

    return run


def join(device: str, planned: int | None, environ: Mapping[str, str] = os.environ) -> World:
    """Join the other processes of the job, which TF_CONFIG names, and check the placement of all of them.

    `device` is auto, cpu or cuda; `planned` the planned number of processes, None if there is no plan. Call it before
    anything is computed. Raises `SettingsError` for an invalid TF_CONFIG or device, `PlacementError` where processes
    are missing or share a GPU.
    """
    rank, addresses = workers(environ)
    size = max(1, len(addresses))
    if (threads := cgroup_limits.threads("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")) is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    if planned is not None and size != planned:
        raise PlacementError(f"TF_CONFIG names {size} processes, and {planned} were planned")
    gpus = tf.config.list_physical_devices("GPU")
    kind = kind_of(device)
    if kind == "cpu":
        gpus = []
        tf.config.set_visible_devices([], "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # without it a process takes all memory of all visible GPUs
    processes = join_workers(kind, len(gpus), environ)
    members = tuple(member for devices in processes for member in devices)
    if len({len(devices) for devices in processes}) > 1:
        raise PlacementError(f"the workers drive different numbers of devices\n{table(members)}")
    check_placement(members, None)
    return World(rank=rank, size=size, kind=kind, strategy=_strategy(size, len(gpus)), members=members)


def join_workers(kind: str, gpus: int, environ: Mapping[str, str] = os.environ) -> list[tuple[RankInfo, ...]]:
    """Wait for all processes of the job, and return the devices of each. `gpus` is the number of this one's.

    Raises `PlacementError` where a process is missing.
    """
    rank, addresses = workers(environ)
    alone = len(addresses) < 2
    count = gpus or (len(tf.config.list_logical_devices("CPU")) if alone and kind == "cpu" else 1)
    mine = tuple(_rank_info(rank * count + index, index, kind, gpus, environ) for index in range(count))
    if alone:
        return [mine]
    return rendezvous.join(rank, addresses, mine, job=rendezvous.job(environ), patience=rendezvous.PATIENCE)


def _strategy(processes: int, gpus: int) -> tf.distribute.Strategy:
    if processes > 1:
        with rendezvous.connecting(workers()[0], processes, "TensorFlow"):
            return tf.distribute.MultiWorkerMirroredStrategy()
    if gpus > 1:
        return tf.distribute.MirroredStrategy()
    if gpus == 0 and len(tf.config.list_logical_devices("CPU")) > 1:
        return tf.distribute.MirroredStrategy([cpu.name for cpu in tf.config.list_logical_devices("CPU")])
    return tf.distribute.get_strategy()


def _rank_info(rank: int, index: int, kind: str, gpus: int, environ: Mapping[str, str]) -> RankInfo:
    """Device `index` of this process, which sees `gpus` GPUs."""
    visible = visible_gpus(gpus, environ)
    return RankInfo(
        rank=rank,
        host=socket.gethostname(),
        device=f"cuda:{index}" if kind == "cuda" else "cpu",
        gpu=f"GPU {visible.split(',')[index]}" if kind == "cuda" and gpus else "",
        visible=visible,
        problem="" if kind == "cpu" or gpus else "TensorFlow sees no CUDA GPU here",
    )


def make_repeatable(deterministic: bool, seed: int) -> None:
    """Seed all random generators; if `deterministic`, allow only kernels whose results repeat bit by bit."""
    keras.utils.set_random_seed(seed % 2**32)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
