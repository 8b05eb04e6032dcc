"""What became of one optimizer step, in every framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """The outcome of an optimizer step, or of several in one execution. Numbers, or scalars on the device that are
    waited for when they are read; of several steps vectors of one value a step."""

    overflowed: Any = None
    """Bool; None without a loss scale, where no step is skipped."""
    loss_scale: Any = None
    """The scale of this step's gradients; None without one."""
    grad_norm: Any = None
    """Norm of all gradients together, unscaled and before clipping; None without clipping."""

    @property
    def applied(self) -> bool:
        """Whether the weights were updated. Waits for the device."""
        return self.overflowed is None or not bool(self.overflowed)
