"""Observes how bfloat16 weights were rounded from the float32 values that an optimizer computed."""

from __future__ import annotations

import contextlib
from collections import Counter

import torch

from amp_launcher.precision.observation import Guard
from amp_launcher.torch.precision.stochastic_rounding import LOWER_BITS, WATCHERS


class RoundingObserver:
    """Counts, over one observed step, the fields of `rounded` in a report (`amp_launcher.precision.observation`).

    Only values that lie where an optimizer stepped count, whatever the precision hands over.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._carried: dict[int, int] = {}
        """Weights that were between two bfloat16 values before the step, by the address of their tensor."""
        self._counts: Counter[str] = Counter()

    def start(self, stack: contextlib.ExitStack) -> None:
        """Begin to observe, until `stack` is closed."""
        WATCHERS.append(self._after_rounding)
        stack.callback(WATCHERS.remove, self._after_rounding)

    def before_step(self, weight: torch.Tensor) -> None:
        """An optimizer is about to step this float32 weight."""
        self._carried[weight.data_ptr()] = int(_lower(weight.detach()).count_nonzero())

    def counts(self) -> dict[str, float]:
        return dict(self._counts)

    def _after_rounding(self, values: torch.Tensor, parameter: torch.Tensor) -> None:
        with self._guard():
            carried = self._carried.pop(values.data_ptr(), None)
            if carried is not None:
                self._counts.update(carried=carried, **_compare(values, parameter))


def _lower(values: torch.Tensor) -> torch.Tensor:
    """The bits of float32 values that bfloat16 lacks, as int32."""
    return values.view(torch.int32).bitwise_and(2**LOWER_BITS - 1)


def _compare(values: torch.Tensor, rounded: torch.Tensor) -> dict[str, float]:
    """Where the rounded values lie, and where stochastic rounding puts them on average."""
    number = ~values.isnan()
    lower = _lower(values)
    toward_zero = values.view(torch.int32).bitwise_right_shift(LOWER_BITS)
    stored = rounded.view(torch.int16).to(torch.int32)
    down, up = (stored == toward_zero) & number, (stored == toward_zero + 1) & (lower > 0) & number
    half = 2 ** (LOWER_BITS - 1)
    farther = (up & (lower < half)) | (down & (lower > half))
    share = torch.where(number, lower, 0).to(torch.float64) / 2**LOWER_BITS
    nearer = torch.where(lower == half, 0, torch.minimum(share, 1 - share))  # of two equally near ones, none is farther
    outside = ~(down | up) & (number | ~rounded.isnan())
    return {
        "weights": values.numel(),
        "between": int((share > 0).sum()),
        "up": int(up.sum()),
        "expected_up": float(share.sum()),
        "farther": int(farther.sum()),
        "expected_farther": float(nearer.sum()),
        "variance": float((share * (1 - share)).sum()),
        "outside": int(outside.sum()),
    }
