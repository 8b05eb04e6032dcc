"""The processes of a job: where each computes, and collectives over them."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from amp_launcher.typed import SettingsError

T = TypeVar("T")

FOR_THE_FIRST = 1.0
"""Seconds that a process waits before it exits where rank 0 prints the reason for all."""


class PlacementError(RuntimeError):
    """Wrong placement of the processes: too few, too many, or two on one GPU."""

    def __init__(self, message: str, *, of_all: bool = True) -> None:
        """`of_all`: every rank has the same message, so only rank 0 needs to print it."""
        super().__init__(message)
        self.of_all = of_all


class SettingsErrorOfAll(SettingsError):
    """A `SettingsError` that every rank raises."""


class FailedElsewhere(RuntimeError):
    """Another rank failed in what all ranks do together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """Where one rank computes."""

    rank: int
    host: str
    device: str
    gpu: str
    """The GPU's own identity; empty on a CPU, or where there is no such GPU."""
    visible: str
    problem: str = ""


class ProcessGroup(ABC):
    """The group of the job's processes, seen from this one. Every method is collective."""

    __slots__ = ()
    rank: int
    size: int
    """Number of processes."""
    members: tuple[RankInfo, ...]

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self.gather(value)[0]

    def leave(self) -> None:
        """Wait for the other ranks, and leave the group."""
        self.gather(None)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over the ranks, on every rank."""
        return [float(sum(column)) for column in zip(*self.gather(list(values)), strict=True)]

    def on_all(self, work: Callable[[], T]) -> list[T]:
        """`work` on every rank, and what it gave, by rank, on every rank.

        Where it fails on one rank, that rank raises its exception and the others a `FailedElsewhere`: no rank waits in
        a later collective for one that has given up.
        """
        value, failed = None, None
        try:
            value = work()
        except Exception as error:  # whatever it is, the other ranks have to know
            failed = error
        answers = self.gather((value, failed and f"{type(failed).__name__}: {failed}"))
        if failed is not None:
            if isinstance(failed, FailedElsewhere):
                time.sleep(FOR_THE_FIRST)
            raise failed
        for rank, (_, problem) in enumerate(answers):
            if problem:
                time.sleep(FOR_THE_FIRST)  # so that the reason on record is that rank's own
                raise FailedElsewhere(f"on rank {rank}, {problem}")
        return [value for value, _ in answers]  # type: ignore[misc]  # none failed: each has a value

    def from_rank_zero(self, make: Callable[[], T]) -> T:
        """`make` on rank 0 alone, and its value on every rank.

        A `SettingsError` on rank 0 is raised on every rank, as a `SettingsErrorOfAll`.
        """
        value, problem = None, None
        if self.rank == 0:
            try:
                value = make()
            except SettingsError as error:
                problem = (str(error), error.key)
        value, problem = self.broadcast((value, problem))
        if problem:
            raise SettingsErrorOfAll(*problem)
        return value  # type: ignore[return-value]  # rank 0's, which made it

    def rank_zero_first(self, make: Callable[[], T]) -> T:
        """`make` on rank 0 and then on the others: the first may download what the others read.

        A `SettingsError` on rank 0 is raised on every rank, as a `SettingsErrorOfAll`.
        """
        made: list[T] = []
        self.from_rank_zero(lambda: made.append(make()))
        return made[0] if made else make()


def rank_and_size(framework: str, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank, and the number of processes.

    By the variables of torchrun, or of `paddle.distributed.launch`; in TensorFlow by TF_CONFIG, and one that can't be
    read is none. Tasks of a function (`amp_launcher.job.tasks`) have variables of their own.
    """
    if "LAUNCHER_TASK" in environ:
        return int(environ["LAUNCHER_TASK"]), int(environ["LAUNCHER_TASKS"])
    if framework == "paddle":
        return int(environ.get("PADDLE_TRAINER_ID", "0")), int(environ.get("PADDLE_TRAINERS_NUM", "1"))
    if framework != "tensorflow":
        return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    try:
        rank, addresses = workers(environ)
    except SettingsError:
        return 0, 1
    return rank, max(1, len(addresses))


def workers(environ: Mapping[str, str] = os.environ) -> tuple[int, tuple[str, ...]]:
    """This process's number and where each process listens, HOST:PORT, by TF_CONFIG; (0, ()) where it isn't set.

    Raises `SettingsError` for one that names anything but workers.
    """
    text = environ.get("TF_CONFIG")
    if not text:
        return 0, ()
    try:
        config = json.loads(text)
        addresses, task = config["cluster"]["worker"], config["task"]
        if (task["type"], set(config["cluster"])) != ("worker", {"worker"}) or task["index"] not in range(
            len(addresses)
        ):
            raise ValueError("only workers are known here")
        for address in addresses:
            host_and_port(address)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"TF_CONFIG={text} should be "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}: '
            f"{error}"
        ) from None
    return task["index"], tuple(addresses)


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises `ValueError`."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise ValueError(f"{address} is not HOST:PORT")
    return host.strip("[]"), int(port)


def speak(what: str, mine: bool) -> None:
    """Print why this job ends, or give rank 0 time to print it: when one ends, torchrun and srun end the others."""
    if mine:
        print(what, file=sys.stderr, flush=True)
    else:
        time.sleep(FOR_THE_FIRST)


def visible_gpus(count: int, environ: Mapping[str, str] = os.environ) -> str:
    """The GPUs that this process may see, as CUDA numbers them."""
    return environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in range(count))) or "none"


def check_placement(places: Sequence[RankInfo], expected_size: int | None) -> None:
    """Raise `PlacementError` unless there are as many ranks as planned, each on a device of its own.

    One rank alone without its GPU is a person's own wrong request: `SettingsError`.
    """
    problems = [f"rank {place.rank}: {place.problem}" for place in places if place.problem]
    if len(places) == 1 and problems:
        raise SettingsError(f"device=cuda: {places[0].problem}; say device=cpu")
    if expected_size is not None and len(places) != expected_size:
        problems.append(f"{len(places)} ranks have met, and {expected_size} were planned")
    users: dict[tuple[str, str], list[int]] = {}
    for place in places:
        if place.gpu:
            users.setdefault((place.host, place.gpu), []).append(place.rank)
    for (host, gpu), ranks in users.items():
        if len(ranks) > 1:
            problems.append(f"ranks {', '.join(map(str, ranks))} share {gpu} of {host}")
    if problems:
        raise PlacementError("\n".join([*problems, table(places)]))


def table(places: Sequence[RankInfo]) -> str:
    """A table for people, one line a rank."""
    rows = [("rank", "host", "device", "GPU", "visible GPUs")]
    rows += [(str(place.rank), place.host, place.device, place.gpu or "-", place.visible) for place in places]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
