"""Paddle's own loss scaler: made from settings, saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

from amp_launcher.precision.levels import LossScale


def make_scaler(scale: LossScale) -> Any:
    """Paddle's scaler with these settings, None for none."""
    if scale.mode in ("none", "auto"):
        return None
    scaler = paddle.amp.GradScaler(**scaler_arguments(scale))
    _make_scalar(scaler)
    return scaler


def scaler_arguments(scale: LossScale) -> dict[str, Any]:
    """A loss scale as arguments of Paddle's scalers. None is a constant 1, since without arguments they scale."""
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


def scaler_state(scaler: Any) -> dict[str, Any]:
    """A scaler's state for a checkpoint, ready for JSON; empty where Paddle has disabled it, as on a CPU."""
    return {name: float(value) if name == "scale" else value for name, value in scaler.state_dict().items()}


def restore_scaler(scaler: Any, state: Mapping[str, Any]) -> None:
    """Restore what `scaler_state` gave."""
    scaler.load_state_dict({**state, "scale": [state["scale"]]})
    _make_scalar(scaler)


def _make_scalar(scaler: Any) -> None:
    """Make its scale a scalar. Paddle has a vector of one number and takes `float()` of it, which NumPy refuses from
    2.4 on. A disabled scaler has none."""
    if scaler._scale is not None:
        scaler._scale = scaler._scale.reshape([])
