"""Files of sharded tensors, written by all ranks and read by any number of them: torch.distributed.checkpoint.

Imported only where a model is sharded or a checkpoint has shards. Only tensors are written by it; it would read
anything else as a pickle, which can run code.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from amp_launcher.run_folder import naming
from amp_launcher.world.world import FailedElsewhere

INDEX = "shards.metadata"
"""Where each tensor's shards lie. Torch calls it `.metadata`; here a name that begins with a dot is not copied."""


class Described(NamedTuple):
    """A whole tensor, of which there are shards."""

    size: torch.Size
    dtype: torch.dtype


def write(folder: Path, tensors: Mapping[str, torch.Tensor], rank: int) -> list[str]:
    """Write this rank's shards of `tensors`, flushed to the disk, and return the names of its files. Collective.

    A file system that refuses them raises `OSError`. Every rank raises where one fails.
    """
    try:
        dcp.save(dict(tensors), storage_writer=_Writer(folder))
    except CheckpointException as error:
        raise _cause(error, rank) from None
    names = sorted(path.name for path in folder.glob(f"__{rank}_*.distcp"))
    if rank == 0:
        os.rename(folder / ".metadata", folder / INDEX)
        names.append(INDEX)
    return names


def describe(folder: Path, files: Collection[str]) -> dict[str, Described]:
    """The sharded tensors of a checkpoint, by name. `files` are those in its manifest.

    Raises `ValueError` for an index that can't be read.
    """
    entries = _Reader(folder, files).read_metadata().state_dict_metadata
    tensors = {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
    return {name: Described(entry.size, entry.properties.dtype) for name, entry in tensors.items()}


def read(folder: Path, files: Collection[str], targets: dict[str, torch.Tensor]) -> None:
    """Fill each target, a sharded tensor or a whole one, with what was saved by its name. Not collective."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        try:
            dcp.load(targets, storage_reader=_Reader(folder, files), no_dist=True)
        except CheckpointException as error:
            raise _cause(error, 0) from None


def _cause(error: CheckpointException, rank: int) -> BaseException:
    """Why this rank failed, else why the first one that did."""
    if rank in error.failures:
        return error.failures[rank][0]
    first, (cause, _) = min(error.failures.items())
    return FailedElsewhere(f"on rank {first}, {type(cause).__name__}: {cause}")


class _Writer(dcp.FileSystemWriter):
    """Raises the system's own error where a file can't be written: what torch says of it hides why."""

    def write_data(self, *arguments: Any, **named: Any) -> Any:
        with naming(Path(self.path)):
            try:
                return super().write_data(*arguments, **named)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


class _Reader(dcp.FileSystemReader):
    """Reads the index without running anything in it, and no file but the checkpoint's own."""

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        super().__init__(folder)
        self._index, self._files = folder / INDEX, files

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        try:
            index = _Unpickler(io.BytesIO(self._index.read_bytes())).load()
            others = {stored.relative_path for stored in index.storage_data.values()} - set(self._files)
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, IndexError, KeyError) as error:
            raise ValueError(f"{self._index} can't be read: {error}") from None
        if others:
            raise ValueError(f"{self._index} names files that are not of its checkpoint: {', '.join(sorted(others))}")
        index.storage_meta = StorageMeta()
        return index


_PARTS = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata"),
        *("TensorProperties", "TensorStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath",),
}
"""The classes in an index, by module, besides torch's dtypes and sizes."""


class _Unpickler(pickle.Unpickler):
    """Makes nothing but the values that an index is made of."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib._local":  # of Python 3.13, for the same class
            module = "pathlib"
        attribute = getattr(torch, name, None) if module == "torch" else None
        plain = isinstance(attribute, torch.dtype) or attribute is torch.Size or name in _PARTS.get(module, ())
        if not plain:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)
