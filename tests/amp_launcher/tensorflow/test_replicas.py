"""Training on several replicas. As a program whose CPU is two devices, it prints what trainings left."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.tensorflow.precision import Mechanism, Precision, replicas
from tests.amp_launcher import forking
from tests.amp_launcher.tensorflow.observed_runs import dense_network

IMAGES = numpy.random.default_rng(0).random((8, 16), numpy.float32)
WORDS = numpy.arange(32).reshape(8, 4) % 5
LABELS = numpy.arange(8) % 4


def train(
    strategy: tf.distribute.Strategy,
    amp: Amp,
    scale: LossScale,
    clip: float | None = None,
    factor: float = 1.0,
    samples: numpy.ndarray = IMAGES,
) -> tuple[list[Any], float | None, int, int]:
    """Weights, loss scale, skipped steps and applied ones after four steps."""
    keras.utils.set_random_seed(0)
    count = strategy.num_replicas_in_sync
    looked_up = [keras.layers.Embedding(40, 6), keras.layers.Flatten()] if samples is WORDS else []
    with strategy.scope():
        inputs = keras.Input(samples.shape[1:], dtype=samples.dtype.name)
        precision = Precision(amp, loss_scale=scale)
        model, optimizer = precision.prepare(
            lambda: keras.Sequential([inputs, *looked_up, keras.layers.Dense(8), keras.layers.Dense(4)]),
            keras.optimizers.SGD(0.1, momentum=0.9),
        )

    def step(some: tf.Tensor, named: tf.Tensor) -> None:
        with precision:
            logits = model(some)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(named, logits)) * factor
        precision.backward(loss)
        precision.step(optimizer, clip=clip)

    @tf.function(autograph=False)
    def execute(some: Any, named: Any) -> None:
        strategy.run(step, (some, named))

    def part(array: numpy.ndarray) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(array[context.replica_id_in_sync_group :: count])
        )

    for _ in range(4):
        execute(*(part(array) if count > 1 else tf.constant(array) for array in (samples, LABELS)))
    weights = [numpy.array(variable.numpy(), numpy.float32).tolist() for variable in model.trainable_variables]
    return weights, precision.scale, precision.skipped_total, int(optimizer.iterations.numpy())


def fit(strategy: tf.distribute.Strategy, init: float) -> tuple[list[Any], float | None, int]:
    """Weights, loss scale and skipped steps after four steps of Keras's fit."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        precision = Precision(
            Amp(level="o2", dtype="float16"), loss_scale=LossScale(mode="dynamic", init=init, growth_every=2)
        )
        model, optimizer = precision.prepare(
            lambda: keras.Sequential([keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(4)]),
            keras.optimizers.SGD(0.1),
        )
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(IMAGES, LABELS, batch_size=8, epochs=4, verbose=0, shuffle=False)
    weights = [numpy.array(variable.numpy(), numpy.float32).tolist() for variable in model.trainable_variables]
    return weights, precision.scale, precision.skipped_total


def drawn(strategy: tf.distribute.Strategy) -> list[Any]:
    """What dropout leaves on each replica."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)])
    replicas.separate_dropout(model)
    run = tf.function(lambda: strategy.run(lambda: model(tf.ones((1, 64)), training=True)), autograph=False)
    return [kept.numpy().tolist() for kept in strategy.experimental_local_results(run())]


def outside(strategy: tf.distribute.Strategy) -> str:
    """Why variables of no strategy are refused in a step of several replicas."""
    precision = Precision("o0")

    def step() -> None:
        with precision:
            pass

    try:
        tf.function(lambda: strategy.run(step), autograph=False)()
    except RuntimeError as error:
        return str(error)
    return ""


CASES: dict[str, tuple[Any, ...]] = {
    "plain": (Amp(level="o0"), LossScale()),
    "clipped": (Amp(level="o0"), LossScale(), 0.05),
    "scaled": (Amp(level="o1"), LossScale(mode="dynamic", init=8.0, growth_every=2), 0.05),
    "skipped": (Amp(level="o1"), LossScale(mode="dynamic", init=2.0**127), None, 1e30),
    "sparse": (Amp(level="o0"), LossScale(), 0.05, 1.0, WORDS),
}


FITTED = {"8.0": (32.0, 0), f"{2.0**30}": (2.0**26, 4)}
"""Loss scale and skipped steps, by the first scale."""


@pytest.fixture(scope="module")
def on_replicas():
    """The same training on one device and on two, in a process where a CPU is two devices."""
    ended = forking.run(__name__)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_two_replicas_train_as_one_device_does_on_both_their_samples(on_replicas, case):
    (one, scale, skipped, steps), (two, *rest) = on_replicas["answers"][case]
    assert rest == [scale, skipped, steps]
    assert (skipped, steps) == ((4, 0) if case == "skipped" else (0, 4))
    tolerance = {"rtol": 0.02, "atol": 1e-3} if case == "scaled" else {"rtol": 1e-5, "atol": 1e-7}
    for single, mirrored in zip(one, two, strict=True):
        assert numpy.allclose(single, mirrored, **tolerance)


@pytest.mark.parametrize(("init", "rest"), FITTED.items())
def test_fit_trains_two_replicas_as_one_device(on_replicas, init, rest):
    (one, *alone), (two, *mirrored) = on_replicas["fit"][init]
    assert alone == mirrored == list(rest)
    for single, other in zip(one, two, strict=True):
        assert numpy.allclose(single, other, rtol=0.02, atol=1e-3)


def test_a_step_of_several_replicas_with_variables_of_no_strategy_is_refused(on_replicas):
    assert "a step runs under MirroredStrategy, but this precision was made under" in on_replicas["outside"]


def test_replicas_draw_dropout_of_their_own(on_replicas):
    first, second = on_replicas["drawn"]
    assert first != second


def test_precision_model_and_optimizer_belong_into_one_strategys_scope():
    precision, strategy = Mechanism.of(Amp(level="o2"), LossScale(), "cpu"), tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        with pytest.raises(
            RuntimeError, match=r"making a model .* under OneDeviceStrategy, .* under DefaultDistributionStrategy"
        ):
            precision.cast(dense_network)
        inside = Mechanism.of(Amp(level="o2"), LossScale(), "cpu")
        model = inside.cast(dense_network)
    with pytest.raises(RuntimeError, match="preparing an optimizer runs under DefaultDistributionStrategy, but this"):
        inside.optimizer(model, keras.optimizers.SGD())


if __name__ == "__main__":
    from tests.amp_launcher.tensorflow import split_cpu

    assert split_cpu
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    answers = {
        name: [train(tf.distribute.get_strategy(), *case), train(mirrored, *case)] for name, case in CASES.items()
    }
    found = {
        "answers": answers,
        "fit": {
            init: [fit(strategy, float(init)) for strategy in (tf.distribute.get_strategy(), mirrored)]
            for init in FITTED
        },
        "drawn": drawn(mirrored),
        "outside": outside(mirrored),
    }
    print(json.dumps(found))
