"""Random inputs with random labels, for recipes of which only the speed and the arithmetic matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from . import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Inputs and labels, both float32 of shape [count, width], uniform from 0 up to 1."""

    inputs: numpy.ndarray
    labels: numpy.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """SHA-256 of all values, as `sha256:...`."""
        return digest(self.inputs, self.labels)


def load(seed: int, count: int, width: int) -> Pairs:
    """The same numbers for the same seed and sizes."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    inputs = random.random((count, width), dtype=numpy.float32)
    labels = random.random((count, width), dtype=numpy.float32)
    return Pairs(inputs=inputs, labels=labels)
