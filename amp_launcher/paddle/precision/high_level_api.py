"""`paddle.Model` at a precision level: it casts, scales the loss, steps and moves the scale by its `amp_configs`."""

from __future__ import annotations

from typing import Any

import paddle

from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.paddle.precision.loss_scale import scaler_arguments
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.typed import SettingsError


def prepare(precision: Mechanism, model: paddle.Model, optimizer: Any, loss: Any) -> None:
    """`model.prepare` at this level.

    The model gets the precision's scaler. By itself it would make another one, which no checkpoint holds, and a
    dynamic one where no loss scale is wanted.
    """
    model.prepare(optimizer, loss, amp_configs=amp_configs(precision))
    model._scaler = precision.scaler or paddle.amp.GradScaler(enable=False)


def train_batch(precision: Mechanism, model: paddle.Model, inputs: Any, labels: Any) -> tuple[float, StepOutcome]:
    """One step of a prepared model: its loss and its outcome."""
    scale = precision.scale
    (loss,) = model.train_batch([inputs], [labels])
    overflowed = precision.scaler is not None and bool(precision.scaler._cache_found_inf)
    return float(loss.item()), precision.record(overflowed, scale)


def amp_configs(precision: Mechanism) -> dict[str, Any] | None:
    """`amp_configs` for `paddle.Model.prepare`, None at o0. Raises `SettingsError` for what it can't express."""
    if precision.level == "o0":
        return None
    if precision.dtype != "float16":
        raise SettingsError("paddle.Model knows float16 alone; say amp.dtype=float16", "amp.dtype")
    level = "O1" if precision.level == "o1" else "O2"
    return {"level": level, **scaler_arguments(precision.resolved.loss_scale), **precision.lists()}
