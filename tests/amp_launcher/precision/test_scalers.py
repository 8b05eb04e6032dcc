"""A loss scale for each optimizer, whose own scaler is a framework's (`tests/amp_launcher/contract`)."""

from __future__ import annotations

import pytest

from amp_launcher.precision.levels import LossScale
from amp_launcher.precision.scalers import NoScale, ScalePerOptimizer
from amp_launcher.typed import SettingsError


def scales(optimizers: int) -> ScalePerOptimizer:
    per_optimizer = ScalePerOptimizer(LossScale(mode="dynamic", per_optimizer=True), NoScale)
    for number in range(optimizers):
        per_optimizer.add(f"optimizer {number}")
    return per_optimizer


@pytest.mark.parametrize("prepared", [0, 1, 3])
def test_the_scales_of_another_number_of_optimizers_are_refused(prepared):
    scales(2).load_state_dict(scales(2).state_dict())
    with pytest.raises(SettingsError, match=f"has the loss scales of 2 optimizers, and {prepared} are prepared; call"):
        scales(prepared).load_state_dict(scales(2).state_dict())
