"""Paddle's own loss scaler, made as asked, saved, and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

from recipes.precision.levels import LossScale


def make_scaler(scale: LossScale) -> Any:
    """Paddle's own scaler with these parameters, None for none."""
    if scale.mode in ("none", "auto"):
        return None
    scaler = paddle.amp.GradScaler(**scaler_arguments(scale))
    _drop_dimension(scaler)
    return scaler


def _drop_dimension(scaler: Any) -> None:
    """Make its scale, a vector of one number, a scalar: as it backs off Paddle takes `float()` of it, which NumPy from
    2.4 on refuses for vectors."""
    if scaler._scale is not None:  # it is where Paddle has switched its scaler off, as on a CPU
        scaler._scale = scaler._scale.reshape([])


def scaler_arguments(scale: LossScale) -> dict[str, Any]:
    """A loss scale in the words of Paddle's scalers. None is one that stays 1: where they get no words they scale."""
    if scale.mode == "none":
        return {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False}
    return {
        "init_loss_scaling": scale.init,
        "incr_ratio": scale.growth,
        "decr_ratio": scale.backoff,
        "incr_every_n_steps": scale.growth_every,
        "decr_every_n_nan_or_inf": scale.backoff_every,
        "use_dynamic_loss_scaling": scale.mode == "dynamic",
    }


def state_of(scaler: Any) -> dict[str, Any]:
    """What a checkpoint holds of it, ready for JSON; empty where Paddle has switched it off."""
    return {name: float(each) if name == "scale" else each for name, each in scaler.state_dict().items()}


def go_on(scaler: Any, saved: Mapping[str, Any]) -> None:
    """Take up what `state_of` gave."""
    scaler.load_state_dict({**saved, "scale": [saved["scale"]]})
    _drop_dimension(scaler)
