"""Levels as on a GPU on a CPU, where Paddle applies none of them."""

from __future__ import annotations

import dataclasses

from amp_launcher.paddle.precision import Precision, precision_of
from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.paddle.precision.mechanisms import mechanism_of
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve

NO_SCALE = LossScale(mode="none")


def forced(level: str, loss_scale: LossScale = NO_SCALE, dtype: str = "bfloat16", **amp) -> Precision:
    """The calls at a level on a CPU."""
    return precision_of(forced_mechanism(level, loss_scale, dtype, **amp))


def forced_mechanism(level: str, loss_scale: LossScale = NO_SCALE, dtype: str = "bfloat16", **amp) -> Mechanism:
    """A level on a CPU, past the support matrix that refuses it: resolved for a GPU, and applied here."""
    asked = Amp(level=level, dtype=dtype, **amp)
    on_gpu = resolve(asked, loss_scale, framework="paddle", device="cuda", capability=(8, 0), environ={}, tf32=False)
    return mechanism_of(dataclasses.replace(on_gpu, device="cpu"))


def float32() -> Mechanism:
    on_cpu = resolve(Amp(level="o0"), LossScale(), framework="paddle", device="cpu", capability=None, environ={})
    return mechanism_of(on_cpu)
