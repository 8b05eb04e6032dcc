"""Which products of a step are an evaluation's: they ran without gradients, and training used none of their results.

A frozen part of the model, a teacher, and the forward of an autograd function or of a reentrant checkpoint run without
gradients too, and training uses what they return. Products that followed each other without gradients are judged
together, so that what is computed from one of them is enough for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from recipes.torch_.observe.modules import memory_of

_UNKNOWN: tuple[None, frozenset[int]] = None, frozenset()


class Evaluations:
    """Follows the results of a step's products without gradients, by their memory."""

    def __init__(self) -> None:
        self._stretches: dict[int, int] = {}
        """Index of a call without gradients -> that of the first call of its stretch."""
        self._used: set[int] = set()
        """Stretches of which training used a result."""
        self._open: int | None = None
        """The stretch that the next product without gradients belongs to."""
        # The weak reference keeps an address from being given to other memory.
        self._made_of: dict[int, tuple[StorageWeakRef, frozenset[int]]] = {}
        """Memory -> the stretches that its data was computed from."""

    def __contains__(self, call: int) -> bool:
        return call in self._stretches and self._stretches[call] not in self._used

    def __bool__(self) -> bool:
        """Whether there is anything to follow."""
        return bool(self._stretches)

    def add(self, call: int, results: Iterable[torch.Tensor]) -> None:
        """A product ran without gradients as number `call` of the step's calls."""
        if self._open is None:
            self._open = call
        self._stretches[call] = self._open
        self.mark(results, frozenset({self._open}))

    def close(self) -> None:
        """Something ran with gradients: what comes later is another stretch."""
        self._open = None

    def origins(self, given: Iterable[torch.Tensor]) -> frozenset[int]:
        """The stretches that these were computed from."""
        return frozenset().union(*(self._made_of.get(memory_of(tensor), _UNKNOWN)[1] for tensor in _dense(given)))

    def mark(self, results: Iterable[torch.Tensor], origins: frozenset[int]) -> None:
        """These were computed from such stretches, too."""
        for tensor in _dense(results) if origins else ():
            reference = StorageWeakRef(tensor.untyped_storage())
            self._made_of[memory_of(tensor)] = reference, origins | self.origins([tensor])

    def use(self, origins: frozenset[int]) -> None:
        """Training uses what was computed from these stretches."""
        self._used |= origins

    def use_call(self, call: int) -> None:
        """Training uses this call, if it is one without gradients."""
        self._used.add(self._stretches.get(call, -1))


def _dense(values: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Those that have memory of their own."""
    return (tensor for tensor in values if tensor.layout == torch.strided)
