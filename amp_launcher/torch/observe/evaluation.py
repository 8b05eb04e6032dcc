"""Which products of a step are not training's work. They ran without gradients of their own, and

- training used none of their results: an evaluation;
- only its loss did, and they are of weights that no optimizer steps: a teacher;
- they were computed from data alone, outside modules with weights: preprocessing;
- they were computed from gradients, outside modules with weights and outside backward: work on gradients before a step,
  as where they are clipped for each sample or projected;
- they multiply a weight by a vector, as spectral norm does to find how large the weight is.

A frozen part of the model, and the forward of an autograd function or of a reentrant checkpoint run without gradients
too: training multiplies what they return. Products that followed each other without gradients are judged together, so
that what is computed from one of them is enough for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch

from amp_launcher.torch.observe.memory import NO_SOURCES, Memory, Sources


class Excuse(Enum):
    """Why a product is not training's work; the value says it of those that are named."""

    EVALUATION = ""
    TEACHER = "of a teacher"
    DATA = "of data, without weights and gradients"
    NORM = "of a weight and a vector, without gradients"
    GRADIENTS = "of gradients, after backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """The matrices of a product without gradients."""

    weights: frozenset[int] = frozenset()
    """The memory of those that are weights."""
    others: frozenset[int] | None = None
    """The memory of all, where none is a weight or was computed by training; else None."""
    sources: Sources = NO_SOURCES
    vector: bool = False
    """One of the two is a vector."""
    gradients: bool = False
    """One was computed from gradients, and no module with weights runs."""


class Evaluations:
    """The stretches of a step's products without gradients."""

    def __init__(self, memory: Memory) -> None:
        self.used: set[object] = set()
        """The sources of which training used a result."""
        self.in_loss: set[object] = set()
        """Those of which it used one without a product."""
        self.trained: set[object] = set()
        """Those that are an autograd function's, or that an optimizer used."""
        self.stepped: set[int] = set()
        """The memory of weights that an optimizer steps, or that have gradients."""
        self._memory = memory
        self._calls: dict[int, int] = {}
        """Index of a call without gradients -> that of the first call of its stretch."""
        self._weights: defaultdict[int, set[int]] = defaultdict(set)
        """The memory of a stretch's weights, and of those of stretches that it got results from."""
        self._operands: dict[int, Operands] = {}
        self._of_gradients: set[int] = set()
        self._open: int | None = None
        """The stretch that the next product without gradients belongs to."""

    def excuses(self) -> dict[int, Excuse]:
        """Index of a call that is not training's work -> why."""
        found = dict.fromkeys(self._of_gradients, Excuse.GRADIENTS)
        others: set[object] = set()
        for call, stretch in self._calls.items():
            excuse = self._excuse(call, stretch, others)
            if excuse is not Excuse.DATA:
                others.add(stretch)
            if excuse is not None:
                found[call] = excuse
        return found

    def _excuse(self, call: int, stretch: int, others: set[object]) -> Excuse | None:
        """`others` are stretches that aren't of data alone."""
        if stretch in self.trained:
            return None
        operands, weights = self._operands[call], self._weights[stretch]
        if stretch not in self.used:
            if stretch not in self.in_loss:
                return Excuse.EVALUATION
            if weights and not weights & self.stepped:
                return Excuse.TEACHER
        if operands.others is not None and not operands.others & self.stepped and not operands.sources & others:
            return Excuse.DATA
        return Excuse.NORM if operands.vector and operands.weights else None

    def add(self, call: int, results: Iterable[torch.Tensor], operands: Operands) -> None:
        """A product ran without gradients as number `call` of the step's calls."""
        if operands.gradients:
            self._of_gradients.add(call)
            return
        if self._open is None:
            self._open = call
        self._calls[call], self._operands[call] = self._open, operands
        weights = self._weights[self._open]
        weights |= operands.weights
        for source in operands.sources:
            if isinstance(source, int):
                weights |= self._weights[source]
        for result in results:
            if result.layout == torch.strided:
                self._memory.record(result).sources |= {self._open}

    def close(self) -> None:
        """Something ran with gradients: what comes later is another stretch."""
        self._open = None

    def use(self, sources: Sources) -> None:
        """Training uses what was computed from these."""
        self.used |= sources

    def train(self, sources: Sources) -> None:
        """These are training's own, although they have no gradients."""
        self.trained |= sources
        self.used |= sources

    def use_call(self, call: int) -> None:
        """Training uses this call, if it is one without gradients."""
        if call in self._calls:
            self.train(frozenset({self._calls[call]}))
