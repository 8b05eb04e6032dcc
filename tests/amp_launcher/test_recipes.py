"""What the launcher knows of every recipe, without a framework."""

from __future__ import annotations

import pytest

from amp_launcher.recipe import NAMES, find
from amp_launcher.recipes import efficientnet, resnet50
from amp_launcher.recipes.efficientnet import EfficientnetSettings
from amp_launcher.recipes.resnet50 import Resnet50Settings, learning_rate
from amp_launcher.settings import Settings, check
from amp_launcher.typed import SettingsError, build


@pytest.mark.parametrize("name", [name for name in NAMES if name != "script"])
def test_every_recipe_has_defaults_that_are_legal_and_layers(name):
    recipe = find(name)
    settings = build(recipe.settings, {})
    assert recipe.name == name
    assert recipe.batch > 0 and recipe.epochs > 0 and recipe.data and recipe.frameworks
    assert len({layer.name for layer in recipe.layers(settings)}) == len(recipe.layers(settings)) > 0


@pytest.mark.parametrize("name", ["mnist", "resnet50", "gan"])
def test_max_pooling_has_no_deterministic_gradient_under_xla(name):
    asked = {"recipe": name, "batch": 8, "framework": "tensorflow", "xla": True, "deterministic": True}
    with pytest.raises(SettingsError, match="say deterministic=false or xla=false"):
        check(Settings(**asked))
    for other in ({"deterministic": None}, {"deterministic": False}, {"xla": False}, {"recipe": "efficientnet"}):
        check(Settings(**{**asked, **other}))


@pytest.mark.parametrize(("stages", "weights"), [((3, 4, 6, 3), 25_502_912), ((3, 4, 23, 3), 44_442_816)])
def test_resnet50_and_resnet101_have_their_published_numbers_of_weights(stages, weights):
    """25,557,032 and 44,549,160 parameters by He et al. and torchvision, here without norms and the last bias."""
    settings = Resnet50Settings(stages=stages)
    assert sum(layer.weights for layer in resnet50.RECIPE.layers(settings)) == weights
    assert sum(block.stride == 2 for block in resnet50.blocks(64, stages)) == 3


def test_efficientnet_has_sixteen_blocks_of_which_nine_add_what_came_in():
    blocks = list(efficientnet.blocks(EfficientnetSettings().stages))
    assert (len(blocks), sum(block.adds for block in blocks)) == (16, 9)
    assert {block.squeezed for block in blocks if block.expanded % 24 == 0} == {4, 6, 10, 20, 28, 48}


def test_resnet50s_learning_rate_climbs_for_five_epochs_and_falls_to_nothing():
    settings = Resnet50Settings()
    rates = [learning_rate(settings, 512, step, 100, 9000) for step in range(9000)]
    assert rates[0] == pytest.approx(2 * 0.256 / 500)
    assert max(rates) == rates[499] == rates[500] == 2 * 0.256
    assert rates[500:] == sorted(rates[500:], reverse=True)
    assert rates[4750] == pytest.approx(0.256)
    assert 0 < rates[-1] < 1e-7
    short = [learning_rate(settings, 256, step, 5004, 10) for step in range(10)]
    assert short[:3] == [0.128, 0.256, 0.256], "a short run warms up for a fifth of its steps"
