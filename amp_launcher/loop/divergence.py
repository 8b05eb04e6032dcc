"""When training has diverged for good: the loss is NaN or Inf, or the loss scale has reached its floor.

Standard library only; the same rule for every framework, over the rows of metrics.jsonl.

A step that overflowed under a loss scale is skipped, which alone is no reason to stop: a dynamic scale finds its level
that way. Training has diverged when the skipping does not end, or when the loss itself stays NaN or Inf, which no lower
scale recovers. It has also diverged when steps in between are taken but the scale falls below what float16 gradients
survive: those steps change nothing. A non-finite loss whose step was taken counts at once: the gradients, and so the
weights, are non-finite from then on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from amp_launcher.precision.levels import LossScale

PATIENCE = 20
"""Steps skipped in a row, with the scale at its floor or fixed, or the loss NaN or Inf, that count as divergence."""
FLOOR = 2.0**-14
"""The floor of a dynamic scale without `min`: float16's smallest normal number. Gradients that overflow even at this
scale are not merely large. fairseq gives up at 1e-4, nearly the same."""


class Diverged(RuntimeError):
    """Further steps would be wasted. The message says since which step, and what to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """How far the loss scale has fallen since it last grew."""

    step: int = 0
    """The first skipped step."""
    scale: float = 0.0
    """The scale at that step."""
    skipped: int = 0
    lost: int = 0
    """Of the skipped steps, those with a loss of NaN or Inf."""

    def further(self, step: int, scale: float, lost: bool) -> Fall:
        """After one more skipped step."""
        if not self.skipped:
            return Fall(step=step, scale=scale, skipped=1, lost=int(lost))
        return Fall(step=self.step, scale=self.scale, skipped=self.skipped + 1, lost=self.lost + lost)


class Detector:
    """Checks the rows of steps, in their order."""

    def __init__(self, *, level: str, mechanism: str, dtype: str, scale: LossScale) -> None:
        """`mechanism`, `dtype` and `scale` as resolved for the device."""
        self._level = level
        self._mechanism = mechanism
        self._dtype = dtype
        self._scale = scale
        self._floor = scale.min or FLOOR
        self._skipped = 0
        self._lost = 0
        """Steps skipped in a row with a loss of NaN or Inf."""
        self._held = 0
        """Steps skipped in a row at the same loss scale."""
        self._last: float | None = None
        """The last loss scale."""
        self._fall = Fall()

    def check_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check the rows of further steps, NaN included. Raises `Diverged`."""
        for row in rows:
            self._skipped = self._skipped + 1 if row["skipped"] else 0
            self._lost = self._lost + 1 if row["skipped"] and not _is_finite(row["loss"]) else 0
            self._follow(row)
            if self._lost >= PATIENCE:
                since = row["step"] - self._lost + 1
                raise Diverged(
                    f"the loss is NaN or Inf at every step since step {since}, where no loss scale helps: what "
                    f"overflows is the forward pass, or the weights are lost; {self._advice(with_scale=False)}"
                )
            if row["skipped"]:
                self._look_at_scale(row)
            elif not _is_finite(row["loss"]):
                raise Diverged(f"the loss is {row['loss']} since step {row['step']}; {self._advice()}")
            elif not _is_finite(row["grad_norm"]):
                raise Diverged(f"the gradients are not finite at step {row['step']}; {self._advice()}")

    def _follow(self, row: Mapping[str, Any]) -> None:
        """Keep up with where the loss scale goes."""
        scale = row["loss_scale"]
        self._held = (self._held + 1 if scale == self._last else 1) if row["skipped"] else 0
        if scale is not None and self._last is not None and scale > self._last:
            self._fall = Fall()
        if row["skipped"] and scale is not None:
            lost = not _is_finite(row["loss"])
            self._fall = self._fall.further(row["step"], scale, lost)
        self._last = scale

    def _look_at_scale(self, row: Mapping[str, Any]) -> None:
        scale = row["loss_scale"]
        if scale is None:
            return  # a script's on a GPU, where reading it waits
        fixed = self._scale.mode == "static"
        stuck = self._held >= max(PATIENCE, 2 * self._scale.backoff_every)  # as some frameworks' own scales are at 1
        down = scale <= self._floor
        if self._skipped >= PATIENCE and (fixed or stuck or down):
            since = row["step"] - self._skipped + 1
            state = f"the loss scale is {'fixed at' if fixed else 'down to'} {scale:g}"
            raise Diverged(f"every step since step {since} overflowed and was skipped, and {state}; {self._advice()}")
        fall = self._fall
        if not fixed and down and self._scale.min is None and fall.scale > FLOOR:
            steps = row["step"] - fall.step + 1
            lost = f", {fall.lost} of them with a loss of NaN or Inf: look at the data" if fall.lost else ""
            raise Diverged(
                f"the loss scale fell from {fall.scale:g} to {scale:g} since step {fall.step}: {fall.skipped} of "
                f"{steps} steps overflowed and were skipped{lost}, and at such a scale gradients vanish from the "
                f"others; {self._advice()}"
            )

    def _advice(self, with_scale: bool = True) -> str:
        """What can be tried, of what this mechanism takes; other loss scales only `with_scale`."""
        tries = []
        if self._dtype == "float16" and self._mechanism != "grappler":  # which has no other on a GPU
            tries.append("amp.dtype=bfloat16 where the device has it")
        if self._level == "o3":
            tries.append("amp=o2")
        elif with_scale and self._scale.mode == "static":
            tries.append("loss_scale=dynamic or a smaller loss_scale.init")
        elif self._mechanism == "half_model_no_masters":
            tries.append("amp.master_weights=true")
        elif self._scale.mode == "none" and self._dtype == "float16":
            tries.append("loss_scale=dynamic")
        tries.append("a lower learning rate")
        if self._level in ("o1", "o2") and self._mechanism != "keras_policy":  # which has no operation lists
            tries.append("amp.deny=[...] for the operations that overflow")
        return f"try {', '.join(tries[:-1])}{', or ' if len(tries) > 1 else ''}{tries[-1]}"


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
