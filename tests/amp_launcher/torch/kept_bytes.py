"""What autograd keeps of a forward pass for backward."""

from __future__ import annotations

from collections.abc import Callable

import torch


def kept_bytes(compute: Callable[[], object]) -> int:
    """Bytes that autograd keeps of `compute`, each storage once."""
    storages: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage  # held, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute()
    return sum(storage.nbytes() for storage in storages.values())
