"""When a run is past saving: its loss is no number any more, or its loss scale has nowhere left to go.

Standard library only; the same rule for every framework, over the rows of metrics.jsonl.

A step that overflowed under a loss scale is skipped, and no reason to stop: that is how a dynamic scale finds its
level. It is one where the skipping doesn't end; where the loss itself was no number all the while, no lower scale will
mend it, since it is computed without one. It is one too where steps in between are taken and the scale falls below what
float16 gradients survive all the same: those steps change nothing. A non-finite loss whose step was taken is one at
once: its gradients, and so the weights, are non-finite from then on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.precision.levels import LossScale

PATIENCE = 20
"""Steps skipped in a row, with the scale at its floor or fixed, or the loss no number, after which it is collapsed."""
FLOOR = 2.0**-14
"""The floor of a dynamic scale that was given none: float16's smallest normal number. Gradients that overflow even
when scaled by this are not merely large. fairseq gives up at 1e-4, nearly the same."""


class Collapsed(RuntimeError):
    """Further steps would be wasted: the message says since when, and what to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """A loss scale on its way down: since it last grew."""

    step: int = 0
    """The first that was skipped."""
    scale: float = 0.0
    """As it was there."""
    skipped: int = 0
    lost: int = 0
    """Of the skipped ones, those whose loss was no number."""

    def further(self, step: int, scale: float, lost: bool) -> Fall:
        """After one more skipped step."""
        if not self.skipped:
            return Fall(step=step, scale=scale, skipped=1, lost=int(lost))
        return Fall(step=self.step, scale=self.scale, skipped=self.skipped + 1, lost=self.lost + lost)


class Watch:
    """Looks at the rows of steps, in their order."""

    def __init__(self, *, level: str, mechanism: str, dtype: str, scale: LossScale) -> None:
        """`mechanism`, `dtype` and `scale` as resolved for the device."""
        self._level = level
        self._mechanism = mechanism
        self._dtype = dtype
        self._scale = scale
        self._floor = scale.min or FLOOR
        self._skipped = 0
        self._lost = 0
        """Of the last ones, those that were skipped with a loss that was no number."""
        self._held = 0
        """Of the last ones, those that were skipped at one and the same loss scale."""
        self._last: float | None = None
        """The last loss scale."""
        self._fall = Fall()

    def see(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the rows of further steps, values as they are, NaN included. Raises `Collapsed`."""
        for row in rows:
            self._skipped = self._skipped + 1 if row["skipped"] else 0
            self._lost = self._lost + 1 if row["skipped"] and not _is_finite(row["loss"]) else 0
            self._follow(row)
            if self._lost >= PATIENCE:
                since = row["step"] - self._lost + 1
                raise Collapsed(
                    f"the loss is no number at every step since step {since}, where no loss scale helps: what "
                    f"overflows is the forward pass, or the weights are lost; {self._advice(with_scale=False)}"
                )
            if row["skipped"]:
                self._look_at_scale(row)
            elif not _is_finite(row["loss"]):
                raise Collapsed(f"the loss is {row['loss']} since step {row['step']}; {self._advice()}")
            elif not _is_finite(row["grad_norm"]):
                raise Collapsed(f"the gradients are not finite at step {row['step']}; {self._advice()}")

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
        fixed = self._scale.mode == "static"
        stuck = self._held >= max(PATIENCE, 2 * self._scale.backoff_every)  # as some frameworks' own scales are at 1
        down = scale is not None and scale <= self._floor
        if self._skipped >= PATIENCE and (fixed or stuck or down):
            since = row["step"] - self._skipped + 1
            state = f"the loss scale is {'fixed at' if fixed else 'down to'} {scale:g}"
            raise Collapsed(f"every step since step {since} overflowed and was skipped, and {state}; {self._advice()}")
        fall = self._fall
        if not fixed and down and self._scale.min is None and fall.scale > FLOOR:
            steps = row["step"] - fall.step + 1
            lost = f", {fall.lost} of them with a loss that is no number: look at the data" if fall.lost else ""
            raise Collapsed(
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
