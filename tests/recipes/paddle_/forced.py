"""Levels on a CPU, where Paddle applies none."""

from __future__ import annotations

from recipes.paddle_.precision.base import MECHANISMS, Precision
from recipes.precision.levels import Amp, LossScale

NO_SCALE = LossScale(mode="none")


def forced(level: str, loss_scale: LossScale = NO_SCALE, dtype: str = "bfloat16", **amp) -> Precision:
    """The mechanism of a level on a CPU, past the table that refuses it."""
    mechanism = {"o1": "auto_cast", "o2": "decorate_auto_cast", "o3": "decorate_no_masters"}[level]
    return MECHANISMS[mechanism](
        amp=Amp(level=level, **amp), loss_scale=loss_scale, dtype=dtype, mechanism=mechanism, device="cpu"
    )


def float32() -> Precision:
    return Precision.of(Amp(level="o0"), LossScale(), "cpu")
