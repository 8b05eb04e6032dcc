"""Which samples a step trains on, as a function of (seed, epoch, index): position is the whole state of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

SPLIT = 2**64 - 1
"""Stands where an epoch would, for what is drawn once in a run."""


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


def uniforms(seed: int, epoch: int, index: int, count: int) -> numpy.ndarray:
    """Random numbers for the augmentation of sample `index` in `epoch`: float64 of shape [count], from 0 up to 1.

    They are raw words of the Philox generator, of a part of its stream that `order` never gets to.
    """
    import numpy

    key = numpy.array([seed % 2**64, epoch], dtype=numpy.uint64)
    counter = numpy.array([0, 0, 0, index + 1], dtype=numpy.uint64)
    words = numpy.random.Philox(key=key, counter=counter).random_raw(count)
    numbers: numpy.ndarray = (words >> numpy.uint64(11)) * 2.0**-53
    return numbers


def split(seed: int, count: int, held_out: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Which of `count` samples are trained on and which `held_out` are not, the same in every epoch: sorted indices."""
    import numpy

    chosen = order(seed, SPLIT, count)
    return numpy.sort(chosen[held_out:]), numpy.sort(chosen[:held_out])
