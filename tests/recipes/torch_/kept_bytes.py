"""What autograd keeps of a forward pass for backward."""

from __future__ import annotations

from collections.abc import Callable

import torch


def kept_bytes(compute: Callable[[], object]) -> int:
    """Bytes that autograd keeps of `compute`, each storage once."""
    found: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage  # held, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute()
    return sum(each.nbytes() for each in found.values())
