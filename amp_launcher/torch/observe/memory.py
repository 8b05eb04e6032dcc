"""What is known of the memory of a step's tensors. Values are followed by their memory, which views share."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

Sources = frozenset["int | Outside"]
"""What training may not use unnoticed, by which values were computed: stretches of products without gradients
(`amp_launcher.torch.observe.evaluation`) and memory that nothing seen wrote (`amp_launcher.torch.observe.outside`)."""
NO_SOURCES: Sources = frozenset()
_PAGE, _PAGES = 4096, 16384
"""Bytes that are read of memory in one place, and at how many places at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the data of a tensor came from."""

    memory: int
    """Identifies the memory that had it first."""
    parameter: nn.Parameter | None = None
    """The weight that it is."""
    writes: int = 0
    """How often the weight had been written when this was made."""
    narrowed: str = ""
    """The dtype of eight bits or fewer that it was rounded to, or is in."""


class State(Enum):
    """Who wrote some memory."""

    GIVEN = 1
    """It is older than the step, or came from outside torch."""
    ALLOCATED = 2
    """Nobody that was seen."""
    FILLED = 3
    """An operation that was seen, with one number."""
    WRITTEN = 4
    """An operation that was seen."""


class Export:
    """Python can write a tensor's memory without an operation, as through the array of `Tensor.numpy`."""

    __slots__ = ("function", "stamp")

    def __init__(self, function: str, stamp: int | None) -> None:
        self.function = function
        """The autograd function in which it was given out; empty for none."""
        self.stamp = stamp
        """Of its contents when an operation wrote it last; None where they can't be read."""


class Outside:
    """Memory that training should have seen being written; `name` says which."""

    def __init__(self, name: str) -> None:
        self.name = name


class Record:
    """What is known of one tensor's memory."""

    __slots__ = ("arrived", "export", "gradient", "mixed", "origin", "sources", "state", "trained", "used", "writes")

    def __init__(self, state: State, sources: Sources = NO_SOURCES, trained: int = 0) -> None:
        self.state = state
        self.sources = sources
        self.mixed = NO_SOURCES
        """Sources of what training computed from their results, as a loss."""
        self.trained = trained
        """Number of the newest forward or backward of training that it was computed from; 0 for none."""
        self.used = False
        """Whether training used it."""
        self.gradient = False
        """Whether it was computed in backward, or from what was."""
        self.arrived: int | None = None
        """Autograd's number when it came from outside torch; None where that wasn't seen."""
        self.origin: Origin | None = None
        self.export: Export | None = None
        self.writes = 0
        """By operations that were seen."""


class Memory:
    """The records of one step."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        """By address of the storage."""
        self._references: list[int] = []
        """Weak ones, which keep addresses from being given to other memory."""

    def __del__(self) -> None:
        for reference in self._references:
            torch.UntypedStorage._free_weak_ref(reference)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def known(self, tensor: torch.Tensor) -> Record | None:
        return self.records.get(memory_of(tensor))

    def record(self, tensor: torch.Tensor) -> Record:
        return self.known(tensor) or self.add(tensor, Record(State.GIVEN))

    def add(self, tensor: torch.Tensor, record: Record) -> Record:
        storage = _storage_of(tensor)
        if storage._cdata not in self.records:
            self._references.append(storage._weak_ref())
        self.records[storage._cdata] = record
        return record


def memory_of(tensor: torch.Tensor) -> int:
    """Identifies a tensor's memory, which its views share, while it exists."""
    return _storage_of(tensor)._cdata


def stamp_of(tensor: torch.Tensor) -> int | None:
    """What is other once the tensor's memory was written: of large memory, most likely. None on a GPU."""
    storage = _storage_of(tensor)
    if storage.device.type != "cpu" or not storage.nbytes():
        return None
    contents = memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
    stamp = 0
    for start in range(0, len(contents), max(_PAGE, len(contents) // _PAGES)):
        stamp = zlib.crc32(contents[start : start + _PAGE], stamp)
    return stamp


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """That of the tensor inside, for one of `torch.func`, which has none."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()
