"""The variables of a run in TensorFlow, by name."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers

from amp_launcher.loop.array_state import ArrayState
from amp_launcher.loop.progress import Progress
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.settings import Settings
from amp_launcher.tensorflow import devices
from amp_launcher.tensorflow.precision import Precision
from amp_launcher.tensorflow.state import Trained, machine
from amp_launcher.typed import SettingsError


def state(*names: str | None) -> ArrayState:
    """Of a model with a layer for each name, all of one shape, the unnamed ones named by Keras."""
    precision = Precision(Amp(level="o0"), loss_scale=LossScale())

    def make() -> keras.Model:
        made = [layers.Dense(4, name=name) for name in names]
        return keras.Sequential([keras.Input((4,)), *made, layers.Dropout(0.5)])

    model, optimizer = precision.prepare(make, keras.optimizers.Adam())
    random = [keras.random.SeedGenerator(0)]
    trained = Trained(models=[model], optimizers=[optimizer], random=random)
    world = devices.World(kind="cpu", rank=0, size=1, strategy=tf.distribute.get_strategy())
    settings = Settings(framework="tensorflow")
    return ArrayState(tensors=trained, precision=precision, settings=settings, world=world, facts=machine(world))


def numbered(one: ArrayState) -> dict[str, float]:
    """Give each variable a number of its own."""
    numbers = {}
    for number, (name, variable) in enumerate(one.tensors.variables().items()):
        variable.assign(numpy.full(variable.shape, number))
        numbers[name] = float(number)
    return numbers


def test_variables_go_by_the_names_of_their_layers_whatever_a_process_made_before():
    one, other = state("first", None, None), state("first", None, None)
    names = list(one.tensors.variables())
    assert names == list(other.tensors.variables())
    assert {"model.0.sequential_0/first/kernel", "model.0.sequential_0/dense_1/bias"} <= {*names}
    assert "model.0.dropout_0/seed" in names
    assert "optimizer.0.model.0.sequential_0/first/kernel.velocity" in names
    assert "optimizer.0.iteration" in names
    assert len(set(names)) == len(one.tensors.models[0].variables) + len(one.tensors.optimizers[0].variables) + 1


def test_layers_that_changed_places_get_their_own_values(tmp_path):
    saved, swapped = state("first", "second"), state("second", "first")
    values = numbered(saved)
    saved.save(tmp_path, Progress(step=1))
    assert swapped.resume(tmp_path) is not None
    restored = {name: float(variable.numpy().flat[0]) for name, variable in swapped.tensors.variables().items()}
    assert restored == values


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (("first",), ("first", "second"), "it lacks model.0.sequential_0/second/kernel"),
        (("first", "second"), ("first",), "it holds model.0.sequential_0/second/kernel"),
        (("first",), ("other",), "it lacks model.0.sequential_0/other/kernel"),
    ],
)
def test_another_models_checkpoint_is_refused_by_name(tmp_path, before, after, problem):
    state(*before).save(tmp_path, Progress(step=1))
    with pytest.raises(SettingsError, match=f"is of another model than this one: {problem}"):
        state(*after).resume(tmp_path)
