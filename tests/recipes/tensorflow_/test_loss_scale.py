"""The loss scale in graphs, beside Keras's own scaler. `tests/recipes/contract` has what all frameworks promise."""

from __future__ import annotations

import keras
import tensorflow as tf

from recipes.precision.levels import LossScale
from recipes.tensorflow_.precision.loss_scale import make_scaler


def scales(settings: LossScale, *overflows: bool) -> list[float]:
    """The scale after each iteration."""
    scaler = make_scaler(settings)

    @tf.function(autograph=False)
    def iterate(overflowed):
        scaler.record(overflowed)
        scaler.update()
        return scaler.current()

    return [float(iterate(tf.constant(overflowed))) for overflowed in overflows]


def test_it_moves_as_keras_own_scaler_at_every_step():
    weight = keras.Variable([0.0])
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=64.0, dynamic_growth_steps=3)
    theirs.build([weight])

    @tf.function(autograph=False)
    def apply(overflowed):
        theirs.apply([tf.where(overflowed, [float("inf")], [-1.0]) * theirs.dynamic_scale])
        return tf.identity(theirs.dynamic_scale.value)

    overflows = (False, True, False, False, False, True, True, False, False, False, False)
    expected = [float(apply(tf.constant(overflowed))) for overflowed in overflows]
    assert scales(LossScale(mode="dynamic", init=64.0, growth_every=3), *overflows) == expected
    assert weight.numpy()[0] == 8.0


def test_a_scale_never_grows_to_infinity():
    assert scales(LossScale(mode="dynamic", init=2.0**127, growth_every=1), False, False) == [2.0**127] * 2


def test_an_optimizer_that_takes_no_step_in_an_iteration_keeps_its_own_scale():
    scaler = make_scaler(LossScale(mode="dynamic", init=8.0, growth_every=2, per_optimizer=True))
    often, rarely = optimizers = [keras.optimizers.SGD() for _ in range(2)]
    for optimizer in optimizers:
        scaler.add(optimizer)

    @tf.function(autograph=False)
    def iterate(*stepped):
        for optimizer in stepped:
            scaler.of(optimizer).record(tf.constant(False))
        scaler.update()

    history = []
    for stepped in ((often, rarely), (often,), (often, rarely)):
        iterate(*stepped)
        history.append([scaler.of(optimizer).value for optimizer in optimizers])
    assert history == [[8.0, 8.0], [16.0, 8.0], [16.0, 16.0]]
