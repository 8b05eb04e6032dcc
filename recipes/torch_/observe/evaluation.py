"""Which products of a step are not training's: they ran without gradients, and training used none of their results,
or in its loss alone and they are of weights that no optimizer steps, as a teacher's are.

A frozen part of the model, and the forward of an autograd function or of a reentrant checkpoint run without gradients
too: training multiplies what they return. Products that followed each other without gradients are judged together, so
that what is computed from one of them is enough for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from recipes.torch_.observe.memory import Memory, Sources


class Evaluations:
    """The stretches of a step's products without gradients."""

    def __init__(self, memory: Memory) -> None:
        self.used: set[object] = set()
        """The sources of which training used a result."""
        self.in_loss: set[object] = set()
        """Those of which it used one without a product."""
        self.stepped: set[int] = set()
        """The memory of weights that an optimizer steps, or that have gradients."""
        self._memory = memory
        self._stretches: dict[int, int] = {}
        """Index of a call without gradients -> that of the first call of its stretch."""
        self._weights: defaultdict[int, set[int]] = defaultdict(set)
        """The memory of a stretch's weights."""
        self._open: int | None = None
        """The stretch that the next product without gradients belongs to."""

    def __contains__(self, call: int) -> bool:
        stretch = self._stretches.get(call)
        if stretch is None or stretch in self.used:
            return False
        return stretch not in self.in_loss or not self._weights[stretch] & self.stepped

    def add(self, call: int, results: Iterable[torch.Tensor], weights: Iterable[int]) -> None:
        """A product of these weights ran without gradients as number `call` of the step's calls."""
        if self._open is None:
            self._open = call
        self._stretches[call] = self._open
        self._weights[self._open].update(weights)
        for result in results:
            if result.layout == torch.strided:
                self._memory.record(result).sources |= {self._open}

    def close(self) -> None:
        """Something ran with gradients: what comes later is another stretch."""
        self._open = None

    def use(self, sources: Sources) -> None:
        """Training uses what was computed from these."""
        self.used |= sources

    def use_call(self, call: int) -> None:
        """Training uses this call, if it is one without gradients."""
        self.used.add(self._stretches.get(call))
