"""Which products of a step are an evaluation's: they ran without gradients, and training used none of their results.

A frozen part of the model, a teacher, and the forward of an autograd function or of a reentrant checkpoint run without
gradients too, and training uses what they return. Products that followed each other without gradients are judged
together, so that what is computed from one of them is enough for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_NONE: frozenset[int] = frozenset()


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
        self._mark(results, frozenset({self._open}))

    def close(self) -> None:
        """Something ran with gradients: what comes later is another stretch."""
        self._open = None

    def use(self, call: int) -> None:
        """Training uses this call, if it is one without gradients."""
        self._used.add(self._stretches.get(call, -1))

    def follow(
        self, given: Iterable[torch.Tensor], results: Iterable[torch.Tensor], training: Callable[[], bool]
    ) -> None:
        """An operation computed results from what it was given; `training()`: they take part in training."""
        origins = _NONE.union(*(self._origins(tensor) for tensor in given))
        if origins and training():
            self._used |= origins
        elif origins:
            self._mark(results, origins)

    def _origins(self, tensor: torch.Tensor) -> frozenset[int]:
        if tensor.layout != torch.strided:
            return _NONE
        return self._made_of.get(tensor.untyped_storage()._cdata, (None, _NONE))[1]

    def _mark(self, results: Iterable[torch.Tensor], origins: frozenset[int]) -> None:
        for tensor in results:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                self._made_of[storage._cdata] = StorageWeakRef(storage), origins | self._origins(tensor)
