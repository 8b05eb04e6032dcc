"""How a loss scale moves, in plain numbers, and a scale for each optimizer; the contract has both in a framework."""

from __future__ import annotations

import math

import pytest

from amp_launcher.precision.levels import LossScale
from amp_launcher.precision.scalers import NoScale, ScalePerOptimizer, moved, scaler_of
from amp_launcher.typed import SettingsError

BOUNDED = LossScale(mode="dynamic", growth_every=2, backoff_every=2, min=6.0, max=24.0)


@pytest.mark.parametrize(
    ("settings", "bad_steps", "scales"),
    [
        (LossScale(mode="static"), "..xx", [8, 8, 8, 8]),
        (LossScale(mode="dynamic", growth_every=2), "...x..x", [8, 16, 16, 8, 8, 16, 8]),
        (BOUNDED, "......x.xxxxx", [8, 16, 16, 24, 24, 24, 24, 24, 24, 12, 12, 6, 6]),
        (BOUNDED, "xxxx.x..", [8, 6, 6, 6, 6, 6, 6, 12]),
    ],
)
def test_a_scale_moves_after_so_many_steps_in_a_row_and_stays_within_its_bounds(settings, bad_steps, scales):
    state, taken = (8.0, 0, 0), []
    for step in bad_steps:
        state = moved(settings, *state, step == "x", where=lambda *given: given[2 - given[0]], is_finite=math.isfinite)
        taken.append(state[0])
    assert taken == scales


def test_settings_choose_no_scale_one_or_one_for_each_optimizer():
    made = [scaler_of(LossScale(mode=mode), NoScale, dict) for mode in ("none", "static")]
    each = scaler_of(LossScale(mode="static", per_optimizer=True), NoScale, dict)
    assert [*map(type, made), type(each)] == [NoScale, dict, ScalePerOptimizer]


OPTIMIZERS = ("first", "second", "third")


def scales(optimizers: int) -> ScalePerOptimizer:
    per_optimizer = ScalePerOptimizer(LossScale(mode="dynamic", per_optimizer=True), NoScale)
    for optimizer in OPTIMIZERS[:optimizers]:
        per_optimizer.add(optimizer)
    return per_optimizer


@pytest.mark.parametrize("prepared", [0, 1, 3])
def test_the_scales_of_another_number_of_optimizers_are_refused(prepared):
    scales(2).load_state_dict(scales(2).state_dict())
    with pytest.raises(SettingsError, match=f"has the loss scales of 2 optimizers, and {prepared} are prepared; call"):
        scales(prepared).load_state_dict(scales(2).state_dict())


def test_an_optimizer_is_named_unless_it_is_the_only_one():
    one, two = scales(1), scales(2)
    assert one.of(None) is one.of(OPTIMIZERS[0])
    assert two.of(OPTIMIZERS[0]) is not two.of(OPTIMIZERS[1])
    for each in (one, two):
        with pytest.raises(RuntimeError, match="this optimizer has no loss scale"):
            each.of(OPTIMIZERS[2])
    for count in (0, 2):
        with pytest.raises(RuntimeError, match=f"with {count} optimizers: say whose loss it is"):
            scales(count).of(None)
