"""Optimizers that divide by the root of averaged squared gradients, as Adam does, and keep that average in float16.

Squares of gradients below 2.4e-4, the root of float16's smallest number, become zero there, and many above lose digits.
The step of such a gradient is divided by epsilon alone: with Adam's 1e-7 it is thousands of times too long, and where
epsilon is rounded to zero too, NaN. Frameworks keep the average in the dtype of the weights that the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp_launcher.precision.levels import Amp

SMALLEST_NORMAL = 2.0**-14
"""Of float16, 6.1e-05: smaller numbers have fewer digits, down to 6e-08 (IEEE 754, binary16)."""


def advice(amp: Amp, dtype: str, epsilons: Mapping[str, float] | None) -> str:
    """Advice on these epsilons, by optimizer, or an empty string. None is a user's own script, whose aren't known."""
    steps_half = amp.level == "o3" or (amp.level == "o2" and amp.master_weights is False)
    low = [f"{name}'s {epsilon:g}" for name, epsilon in (epsilons or {}).items() if epsilon < SMALLEST_NORMAL]
    if dtype != "float16" or not steps_half or (epsilons is not None and not low):
        return ""
    whose = " and ".join(low) or "in this script Adam's own (1e-08 in torch and Paddle, 1e-07 in Keras)"
    level = "amp=o3" if amp.level == "o3" else "amp.master_weights=false"
    return (
        f"{level} with float16 keeps squared gradients in float16, where small ones are zero, and then steps are "
        f"divided by epsilon alone: one below {SMALLEST_NORMAL:.1e}, {whose}, lets losses drift or ends in no number; "
        "say amp.dtype=bfloat16, which holds the squares, or amp=o2, which steps in float32"
    )
