"""Whose epsilon float16 loses, and that it does."""

from __future__ import annotations

import pytest

from amp_launcher.precision import adam_epsilon
from amp_launcher.precision.levels import Amp
from amp_launcher.recipes.gan import RECIPE

ADAM = {"Adam": 1e-8}


@pytest.mark.parametrize(
    ("amp", "dtype", "epsilons", "advice"),
    [
        (Amp(level="o3"), "float16", ADAM, "amp=o3 with float16"),
        (Amp(level="o2", master_weights=False), "float16", ADAM, "amp.master_weights=false with float16"),
        (Amp(level="o3"), "float16", None, "in this script Adam's own (1e-08 in torch and Paddle, 1e-07 in Keras)"),
        (Amp(level="o3"), "float16", {**ADAM, "RMSprop": 1e-4}, "below 6.1e-05, Adam's 1e-08, lets"),
        (Amp(level="o3"), "float16", RECIPE.epsilons, "Adam's 1e-07 and RMSprop's 1e-07"),
        (Amp(level="o3"), "bfloat16", ADAM, ""),
        (Amp(level="o2"), "float16", ADAM, ""),
        (Amp(level="o1"), "float16", None, ""),
        (Amp(level="o3"), "float16", {"Adam": adam_epsilon.SMALLEST_NORMAL}, ""),
        (Amp(level="o3"), "float16", {}, ""),
    ],
)
def test_small_epsilons_are_advised_against_where_squares_are_kept_in_float16(amp, dtype, epsilons, advice):
    text = adam_epsilon.advice(amp, dtype, epsilons)
    assert advice in text and bool(text) == bool(advice)


@pytest.mark.parametrize(("dtype", "lost"), [("float16", True), ("bfloat16", False)])
def test_the_first_step_of_adam_is_as_long_as_its_rate_but_in_float16(dtype, lost):
    """Of a gradient of 1e-4: Adam's first step is the learning rate by its definition."""
    torch = pytest.importorskip("torch")
    weight = torch.zeros(1, dtype=getattr(torch, dtype), requires_grad=True)
    weight.grad = torch.full_like(weight, 1e-4)
    torch.optim.Adam([weight], lr=1e-3, eps=RECIPE.epsilons["Adam"]).step()
    assert (abs(weight.item()) > 100 * 1e-3) is lost
    assert lost or abs(weight.item()) == pytest.approx(1e-3, rel=0.02)
