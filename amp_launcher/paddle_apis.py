"""What Paddle's ways of training other than a loop of one's own can't do. Standard library only."""

from __future__ import annotations

from typing import Any

from amp_launcher.precision.levels import Amp
from amp_launcher.typed import SettingsError


def is_static(settings: Any) -> bool:
    """Whether a static graph is trained."""
    return getattr(settings.train, "api", None) == "static"


def check_api(settings: Any) -> None:
    """Refuse `train.api` elsewhere than in Paddle, and what it can't do. Raises `SettingsError`."""
    if settings.train is None or settings.train.api == "loop":
        return
    api = settings.train.api
    if settings.framework != "paddle":
        raise SettingsError(f"train.api={api} is Paddle's, and this is framework={settings.framework}")
    if settings.accumulate > 1:
        raise SettingsError(f"train.api={api} accumulates no gradients here; say train.api=loop", "accumulate")
    if settings.amp.keep_fp32:
        raise SettingsError(
            f"amp.keep_fp32 with train.api={api}: only a loop of one's own keeps layers in float32 by their names; say "
            "train.api=loop",
            "amp.keep_fp32",
        )
    if api == "model" and settings.amp.level != "o0":
        _check_model(settings.amp)


def _check_model(amp: Amp) -> None:
    """What `paddle.Model.prepare(amp_configs=...)` can't be told. Raises `SettingsError`."""
    if amp.dtype != "float16":
        raise SettingsError("train.api=model: paddle.Model knows float16 alone; say amp.dtype=float16", "amp.dtype")
    if amp.level == "o3" or amp.master_weights is False:
        raise SettingsError("train.api=model: paddle.Model has master weights at O2; say train.api=loop", "amp.level")
