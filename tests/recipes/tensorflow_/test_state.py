"""The variables of a run in TensorFlow, by name."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers

from recipes.precision.levels import Amp, LossScale
from recipes.settings import Settings
from recipes.tensorflow_ import devices
from recipes.tensorflow_.precision import Precision
from recipes.tensorflow_.state import State, Trained
from recipes.trainer.progress import Progress
from recipes.typed import SettingsError


def state(*names: str | None) -> State:
    """Of a model with a layer for each name, all of one shape, the unnamed ones named by Keras."""
    precision = Precision.of(Amp(level="o0"), LossScale(), "cpu")

    def make() -> keras.Model:
        made = [layers.Dense(4, name=name) for name in names]
        return keras.Sequential([keras.Input((4,)), *made, layers.Dropout(0.5)])

    model = precision.cast(make)
    optimizer = precision.optimizer(model, keras.optimizers.Adam())
    random = [keras.random.SeedGenerator(0)]
    trained = Trained(models=[model], optimizers=[optimizer], random=random, precision=precision)
    world = devices.World(kind="cpu", rank=0, size=1, strategy=tf.distribute.get_strategy())
    return State(trained=trained, settings=Settings(framework="tensorflow"), world=world)


def numbered(one: State) -> dict[str, float]:
    """Give each variable a number of its own."""
    found = {}
    for number, (name, each) in enumerate(one.trained.variables().items()):
        each.assign(numpy.full(each.shape, number))
        found[name] = float(number)
    return found


def test_variables_go_by_the_names_of_their_layers_whatever_a_process_made_before():
    one, other = state("first", None, None), state("first", None, None)
    names = list(one.trained.variables())
    assert names == list(other.trained.variables())
    assert {"model.0.sequential_0/first/kernel", "model.0.sequential_0/dense_1/bias"} <= {*names}
    assert "model.0.dropout_0/seed" in names
    assert "optimizer.0.model.0.sequential_0/first/kernel.velocity" in names
    assert "optimizer.0.iteration" in names
    assert len(set(names)) == len(one.trained.models[0].variables) + len(one.trained.optimizers[0].variables) + 1


def test_layers_that_changed_places_get_their_own_values(tmp_path):
    saved, swapped = state("first", "second"), state("second", "first")
    values = numbered(saved)
    saved.save(tmp_path, Progress(step=1))
    assert swapped.resume(tmp_path) is not None
    taken = {name: float(each.numpy().flat[0]) for name, each in swapped.trained.variables().items()}
    assert taken == values


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("first",), ("first", "second"), "does not hold model.0.sequential_0/second/kernel"),
        (("first", "second"), ("first",), "holds model.0.sequential_0/second/kernel"),
        (("first",), ("other",), "does not hold model.0.sequential_0/other/kernel"),
    ],
)
def test_another_models_checkpoint_is_refused_by_name(tmp_path, before, after, said):
    state(*before).save(tmp_path, Progress(step=1))
    with pytest.raises(SettingsError, match=f"{said}: it is of another model"):
        state(*after).resume(tmp_path)
