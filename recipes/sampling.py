"""Which samples a step trains on, as a function of (seed, epoch, index): position is the whole state of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


def order(seed: int, epoch: int, count: int) -> numpy.ndarray:
    """The order in which `epoch` visits `count` samples: a permutation, int64 of shape [count].

    It sorts the raw words of the Philox generator, whose stream NumPy promises never to change; its `permutation`
    carries no such promise.
    """
    import numpy

    key = numpy.array([seed % 2**64, epoch], dtype=numpy.uint64)
    return numpy.argsort(numpy.random.Philox(key=key).random_raw(count), kind="stable")


def share(order: numpy.ndarray, batch: int, accumulate: int, rank: int, world_size: int) -> numpy.ndarray:
    """One rank's part of an epoch, int64 of shape [steps, accumulate, batch / (accumulate * world_size)].

    Each step takes the next `batch` samples; what is left of the last, incomplete batch is left out, so that every step
    has the same shapes. Within a step micro-batches are dealt first and ranks second: each micro-batch is the same for
    any number of ranks.
    """
    steps = len(order) // batch
    return order[: steps * batch].reshape(steps, accumulate, world_size, -1)[:, :, rank]
