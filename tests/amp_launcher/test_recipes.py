"""What the launcher knows of every recipe, without a framework."""

from __future__ import annotations

import pytest

from amp_launcher.recipe import NAMES, find
from amp_launcher.recipes import efficientnet, resnet50
from amp_launcher.recipes.efficientnet import EfficientnetSettings
from amp_launcher.recipes.resnet50 import Resnet50Settings, learning_rate
from amp_launcher.settings import Settings, check_settings
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
        check_settings(Settings(**asked))
    for other in ({"deterministic": None}, {"deterministic": False}, {"xla": False}, {"recipe": "efficientnet"}):
        check_settings(Settings(**{**asked, **other}))


@pytest.mark.parametrize(("stages", "weights"), [((3, 4, 6, 3), 25_502_912), ((3, 4, 23, 3), 44_442_816)])
def test_resnet50_and_resnet101_have_their_published_numbers_of_weights(stages, weights):
    """25,557,032 and 44,549,160 parameters by He et al. and torchvision, here without norms and the last bias."""
    settings = Resnet50Settings(stages=stages)
    assert sum(layer.weights for layer in resnet50.RECIPE.layers(settings)) == weights
    assert sum(block.stride == 2 for block in resnet50.blocks(64, stages)) == 3


def test_efficientnet_has_sixteen_blocks_of_which_nine_add_what_came_in():
    blocks = list(efficientnet.blocks(EfficientnetSettings()))
    assert (len(blocks), sum(block.adds for block in blocks)) == (16, 9)
    assert {block.squeezed for block in blocks if block.expanded % 24 == 0} == {4, 6, 10, 20, 28, 48}
    assert blocks[0].squeezed == 8, "the notebook squeezes by 4 what 24 does not divide"


@pytest.mark.parametrize(
    ("variant", "side", "blocks", "parameters"),
    [
        ("b0", 224, 16, 5_288_548),
        ("b1", 240, 23, 7_794_184),
        ("b2", 260, 23, 9_109_994),
        ("b3", 300, 26, 12_233_232),
        ("b4", 380, 32, 19_341_616),
        ("b5", 456, 39, 30_389_784),
        ("b6", 528, 45, 43_040_704),
        ("b7", 600, 55, 66_347_960),
    ],
)
def test_efficientnets_variants_have_the_published_numbers_of_parameters(variant, side, blocks, parameters):
    """Those of the authors' own code and torchvision, for 1,000 classes: without biases of convolutions that a norm
    follows, and without an expansion by 1, which the notebook has."""
    settings = EfficientnetSettings(variant=variant)
    assert (settings.side, len(list(efficientnet.blocks(settings)))) == (side, blocks)
    unexpanded = {f"{block.name}.expand" for block in efficientnet.blocks(settings) if block.expansion == 1}
    *layers, classifier = (layer for layer in efficientnet.RECIPE.layers(settings) if layer.name not in unexpanded)
    others = sum(
        layer.outputs if layer.name.endswith(("squeeze", "excite")) else 2 * layer.outputs  # a bias, a norm
        for layer in layers
    )
    assert sum(layer.weights for layer in layers) + others + 1000 * (classifier.inputs + 1) == parameters


def test_an_image_size_that_is_given_stays_at_every_variant():
    assert EfficientnetSettings(variant="b7", image_size=32).side == 32


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
