"""The calls of a training loop in TensorFlow, beside Keras's fit."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.tensorflow import Precision
from amp_launcher.typed import SettingsError

OVERFLOWING = LossScale(mode="dynamic", init=2.0**22, growth_every=3)
MODES = {
    "o0": (Amp(level="o0"), LossScale()),
    "o1": (Amp(level="o1"), LossScale()),
    "o1 scaled": (Amp(level="o1"), LossScale(mode="dynamic", init=8.0, growth_every=3)),
    "o2": (Amp(level="o2"), LossScale()),
    "o2 float16": (Amp(level="o2", dtype="float16"), OVERFLOWING),
    "o3": (Amp(level="o3"), LossScale()),
}
SAMPLES = 16
IMAGES = numpy.random.Generator(numpy.random.Philox(1)).random((SAMPLES, 8), numpy.float32)
LABELS = numpy.arange(SAMPLES) % 4
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2, seed=3),
            layers.Dense(4),
        ]
    )


def plain() -> keras.Model:
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(4)])


def prepared(
    mode: str,
    function: Any = make,
    optimizer: Any = lambda: keras.optimizers.Adam(0.01),
) -> tuple[Precision, keras.Model, keras.Optimizer]:
    keras.utils.set_random_seed(0)
    amp, scale = MODES[mode]
    precision = Precision(amp, loss_scale=scale)
    return precision, *precision.prepare(function, optimizer())


def trainer(precision: Precision, model: keras.Model, *optimizers: keras.Optimizer, clip: float | None = 1.0) -> Any:
    def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with precision:
            loss = cross_entropy(labels, model(images, training=True))
        precision.backward(loss)
        precision.step(*optimizers, clip=clip)
        return loss

    return train


def values(model: keras.Model, *optimizers: keras.Optimizer) -> list[Any]:
    variables = [*model.variables, *(variable for optimizer in optimizers for variable in optimizer.variables)]
    return [numpy.array(variable.numpy(), numpy.float32).tolist() for variable in variables]


@pytest.mark.parametrize("mode", ["o0", "o2 float16", "o3"])
def test_micro_batches_with_a_clip_train_eagerly_as_in_a_graph(mode):
    trained = []
    for function in (tf.function, lambda train: train):
        precision, model, optimizer = prepared(mode, optimizer=lambda: keras.optimizers.SGD(0.1))

        def train(images, labels, precision=precision, model=model, optimizer=optimizer):
            for some, named in zip(tf.split(images, 2), tf.split(labels, 2), strict=True):
                with precision:
                    loss = cross_entropy(named, model(some, training=True)) / 2
                precision.backward(loss)
            return precision.step(optimizer, clip=0.5).grad_norm

        execute = function(train)
        norms = [float(execute(tf.constant(IMAGES), tf.constant(LABELS))) for _ in range(8)]
        assert norms[-1] > 0
        assert (precision.skipped_total > 0) == (mode == "o2 float16")
        trained.append((values(model, optimizer), precision.state_dict()))
    (graph, state), (eager, other) = trained
    assert state == other
    tolerance = 1e-5 if mode == "o0" else 0.02
    for one, two in zip(graph, eager, strict=True):
        assert numpy.allclose(one, two, rtol=tolerance, atol=tolerance)


def test_a_function_that_is_traced_anew_goes_on():
    trained = []
    for sizes in ((16, 16, 16), (16, 8, 16)):
        precision, model, optimizer = prepared("o2 float16")
        train = tf.function(trainer(precision, model, optimizer))
        for size in sizes:
            train(IMAGES[:size], LABELS[:size])
        trained.append(len(train._list_all_concrete_functions()))
        assert int(optimizer.iterations.numpy()) + precision.skipped_total == 3
    assert trained == [1, 2]


def test_a_trace_that_failed_leaves_nothing_behind():
    precision, model, optimizer = prepared("o2")

    @tf.function
    def fails(images, labels):
        with precision:
            loss = cross_entropy(labels, model(images, training=True))
        precision.backward(loss)
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        fails(IMAGES, LABELS)
    other = prepared("o2")
    for one, own in ((precision, (model, optimizer)), (other[0], other[1:])):
        tf.function(trainer(one, *own))(IMAGES, LABELS)
    assert values(model.layers[0]) == values(other[1].layers[0])


# Keras's own training


@pytest.mark.parametrize("mode", ["o1 scaled", "o2 float16", "o3"])
def test_fit_after_prepare_is_the_loop_of_the_calls(mode):
    precision, model, optimizer = prepared(mode)
    train = tf.function(trainer(precision, model, optimizer, clip=None))
    for _ in range(12):
        train(IMAGES, LABELS)
    expected, state, answers = values(model, optimizer), precision.state_dict(), model(IMAGES)
    precision, model, optimizer = prepared(mode)
    model.compile(optimizer, loss=cross_entropy, metrics=["accuracy"])
    model.fit(IMAGES, LABELS, batch_size=SAMPLES, epochs=12, verbose=0, shuffle=False)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if mode.startswith("o1") else {"rtol": 0, "atol": 0}
    for one, other in zip(values(model, optimizer), expected, strict=True):  # at o1 Grappler fuses other operations
        assert numpy.allclose(one, other, **tolerance)
    assert precision.state_dict() == state
    assert model.optimizer is optimizer
    predicted = model.predict(IMAGES, verbose=0)
    assert (predicted.dtype, model.evaluate(IMAGES, LABELS, verbose=0)[0] > 0) == ("float32", True)
    assert numpy.allclose(predicted, answers, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_with_sparse_gradients_and_frozen_layers_steps_the_others(run_eagerly):
    keras.utils.set_random_seed(0)
    precision = Precision(Amp(level="o2", dtype="float16"), loss_scale=LossScale(mode="dynamic", init=64.0))
    model, optimizer = precision.prepare(
        lambda: keras.Sequential(
            [keras.Input((3,), dtype="int32"), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(4, name="head")]
        ),
        keras.optimizers.SGD(0.1),
    )
    model.layers[-1].trainable = False
    before = values(model)
    model.compile(optimizer, loss=cross_entropy, run_eagerly=run_eagerly)
    model.fit(numpy.arange(12).reshape(4, 3) % 9, numpy.arange(4), epochs=2, verbose=0)
    assert [one == other for one, other in zip(values(model), before, strict=True)] == [False, True, True]


def test_compile_takes_the_prepared_optimizer_alone_and_a_step_its_scaled_loss():
    _, model, optimizer = prepared("o2 float16")
    for other in ("adam", keras.optimizers.Adam()):
        with pytest.raises(RuntimeError, match=r"model\.compile takes the optimizer that precision\.prepare"):
            model.compile(other, loss="mse")
    with tf.GradientTape() as tape:
        loss = cross_entropy(LABELS, model(IMAGES))
    gradients = tape.gradient(loss, model.trainable_variables)
    with pytest.raises(RuntimeError, match=r"a loss that was not scaled: call precision\.backward\(loss\)"):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    _, model, optimizer = prepared("o1")
    for word in ("run_eagerly", "jit_compile"):
        with pytest.raises(RuntimeError, match=f"o1 rewrites graphs, which {word}=True bypasses"):
            model.compile(optimizer, loss="mse", **{word: True})


# What a model takes and gives

Pair = collections.namedtuple("Pair", "one other")


@dataclasses.dataclass(frozen=True)
class Answer:
    logits: Any
    rows: Any
    note: str = ""


class Structured(keras.Model):
    """Takes and gives structures; says in which dtypes it was called."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)
        self.seen = None

    def build(self, shape):
        self.dense.build((None, 8))
        self.built = True

    def call(self, given, scale=None, training=False):
        self.seen = (given["pair"].one.dtype.name, given["rows"].dtype.name, scale.dtype.name, training)
        logits = self.dense(given["pair"].one) * scale
        return {"pair": Pair(logits, [given["rows"]]), "answer": Answer(logits, given["rows"], "note"), "none": None}


@pytest.mark.parametrize(("mode", "inside"), [("o0", "float32"), ("o1", "float32"), ("o3", "bfloat16")])
def test_a_prepared_model_casts_what_it_takes_and_gives_in_any_structure(mode, inside):
    def built():
        model = Structured()
        model.build(None)
        return model

    precision = Precision(MODES[mode][0])
    model = precision.prepare(built)
    given = {"pair": Pair(tf.ones((2, 8)), tf.ones(2)), "rows": tf.constant([1, 2])}

    @tf.function
    def call(given):
        taken = model(given, scale=tf.constant(2.0), training=True)
        return {name: taken[name] for name in ("pair", "none")}

    taken = call(given)
    assert model.seen == (inside, "int32", inside, True)
    model(given, scale=tf.constant(2.0))
    assert model.seen == (inside, "int32", inside, False)
    assert isinstance(taken["pair"], Pair)
    assert (taken["pair"].one.dtype, taken["pair"].other[0].dtype) == (tf.float32, tf.int32)
    answer = model(given, scale=tf.constant(2.0))["answer"]
    assert (type(answer), answer.note) == (Answer, "note")
    assert (answer.logits.dtype, answer.rows.dtype, given["pair"].one.dtype) == (tf.float32, tf.int32, tf.float32)


@pytest.mark.parametrize("mode", ["o0", "o1", "o2", "o3"])
def test_masks_of_outputs_stay_so_that_fit_leaves_padding_out(mode):
    def masked():
        return keras.Sequential([keras.Input((4,), dtype="int32"), layers.Embedding(5, 4, mask_zero=True)])

    words, zeros = numpy.array([[1, 2, 0, 0], [3, 0, 0, 0]]), numpy.zeros((2, 4, 4), numpy.float32)
    _, model, optimizer = prepared(mode, masked, lambda: keras.optimizers.SGD(0.0))  # the weights stay
    model.compile(optimizer, loss="mse")
    losses = [
        model.fit(words, targets, shuffle=False, verbose=0).history["loss"]
        for targets in (zeros, zeros + 9 * (words[..., None] == 0).astype(numpy.float32))
    ]
    assert losses[0] == losses[1]


# Several models and optimizers


def two(scale: LossScale, **chosen: Any) -> tuple[Precision, keras.Model, list[keras.Optimizer]]:
    """A model whose two layers have an optimizer each."""
    keras.utils.set_random_seed(0)
    precision = Precision(Amp(level="o2", dtype="float16"), loss_scale=scale)
    model = precision.prepare(plain)
    optimizers = []
    for layer in model.layers:
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(layer.trainable_variables)
        optimizers.append(precision.prepare(optimizer))
    return precision, model, optimizers


@pytest.mark.parametrize("function", [tf.function, lambda train: train], ids=["in a graph", "eagerly"])
def test_optimizers_that_step_together_have_one_norm_and_move_the_scale_once(function):
    amp, scale = Amp(level="o2", dtype="float16"), LossScale(mode="dynamic", init=2.0**24, growth_every=2)
    keras.utils.set_random_seed(0)
    alone = Precision(amp, loss_scale=scale)
    whole, optimizer = alone.prepare(plain, keras.optimizers.SGD(0.1))
    precision, model, optimizers = two(scale)
    one, both = (
        function(trainer(alone, whole, optimizer, clip=0.3)),
        function(trainer(precision, model, *optimizers, clip=0.3)),
    )
    for _ in range(10):
        one(IMAGES, LABELS)
        both(IMAGES, LABELS)
        assert precision.scale == alone.scale
    assert values(model) == values(whole)
    assert precision.skipped_total == 2 * alone.skipped_total > 0


@pytest.mark.parametrize("function", [tf.function, lambda train: train], ids=["in a graph", "eagerly"])
def test_optimizers_with_losses_and_steps_of_their_own_move_the_scale_once_an_iteration(function):
    precision, model, (first, last) = two(LossScale(mode="dynamic", init=8.0, growth_every=2))

    def train(images, labels):
        for optimizer in (first, last):
            with precision:
                loss = cross_entropy(labels, model(images, training=True))
            precision.backward(loss, optimizer)
            precision.step(optimizer)

    execute, scales = function(train), []
    for _ in range(4):
        execute(IMAGES, LABELS)
        scales.append(precision.scale)
    assert scales == [8.0, 16.0, 16.0, 32.0]
    assert (int(first.iterations.numpy()), int(last.iterations.numpy())) == (4, 4)


@pytest.mark.parametrize("function", [tf.function, lambda train: train], ids=["in a graph", "eagerly"])
def test_the_scale_moves_where_an_optimizer_steps_alone(function):
    """At the next iteration, since the other might step yet."""
    precision, model, (first, _) = two(LossScale(mode="dynamic", init=8.0, growth_every=1))

    def train(images, labels):
        with precision:
            loss = cross_entropy(labels, model(images, training=True))
        precision.backward(loss, first)
        return precision.step(first).loss_scale

    execute = function(train)
    assert [float(execute(IMAGES, LABELS)) for _ in range(3)] == [8.0, 16.0, 32.0]


def test_a_loss_that_reaches_anothers_weights_says_whose_it_is():
    precision, model, (first, _) = two(LossScale())
    with precision:
        loss = cross_entropy(LABELS, model(IMAGES))
    precision.backward(loss)
    precision.step(first)
    with precision:
        loss = cross_entropy(LABELS, model(IMAGES))
    with pytest.raises(RuntimeError, match=r"say whose loss each is, as precision\.backward\(loss, optimizer\)"):
        precision.backward(loss)


# What is saved


def test_what_a_script_saves_of_model_and_optimizer_resumes_bit_for_bit(tmp_path):
    """In a checkpoint of TensorFlow's, and in a file of weights of Keras's."""

    def begun():
        precision, model, optimizer = prepared("o2 float16", plain)  # Keras saves no state of a dropout
        model.compile(optimizer, loss=cross_entropy)
        return precision, model, optimizer, tf.function(trainer(precision, model, optimizer))

    precision, model, optimizer, train = begun()
    for _ in range(13):
        train(IMAGES, LABELS)
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(tmp_path / "saved")
    model.save_weights(tmp_path / "saved.weights.h5")
    for _ in range(7):
        train(IMAGES, LABELS)
    expected, state = values(model, optimizer), precision.state_dict()
    assert 0 < state["scaler"]["skipped"] < 20
    for saved in ("saved", "saved.weights.h5"):
        precision, model, optimizer, train = begun()
        if saved == "saved":
            tf.train.Checkpoint(model=model, optimizer=optimizer).read(tmp_path / saved).assert_consumed()
        else:
            model.load_weights(tmp_path / saved)
        for _ in range(7):
            train(IMAGES, LABELS)
        assert (values(model, optimizer), precision.state_dict()) == (expected, state), saved


def test_plain_keras_loads_what_was_saved_and_it_loads_what_plain_keras_saved(tmp_path):
    _, model, optimizer = prepared("o2 float16", plain)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(IMAGES, LABELS, verbose=0)
    model.save(tmp_path / "ours.keras")
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert values(loaded) == values(model)
    unscaled = plain()
    unscaled.compile(keras.optimizers.Adam(), loss="sparse_categorical_crossentropy")
    unscaled.fit(IMAGES, LABELS, verbose=0)
    unscaled.save_weights(tmp_path / "plain.weights.h5")
    precision, model, optimizer = prepared("o2 float16", plain)
    model.compile(optimizer, loss="mse")
    model.load_weights(tmp_path / "plain.weights.h5")
    assert values(model, optimizer) == values(unscaled, unscaled.optimizer)
    assert precision.scale == OVERFLOWING.init


# What is refused


def test_a_model_that_is_made_is_taken_in_its_modes_dtypes_alone():
    precision = Precision("o0")
    model = plain()
    assert precision.prepare(model) is model
    with pytest.raises(RuntimeError, match=r"float32, and amp=o2 gives it mixed_bfloat16: .*prepare\(make_model, opt"):
        Precision("o2").prepare(plain(), keras.optimizers.Adam())
    with pytest.raises(RuntimeError, match=r"no variables yet: begin it with keras.Input"):
        precision.prepare(lambda: keras.Sequential([layers.Dense(4)]))


def test_what_prepare_cannot_take_is_refused():
    precision, model, optimizer = prepared("o2")
    for given in (model, optimizer):
        for one in (precision, Precision("o2")):
            with pytest.raises(RuntimeError, match=r"is prepared already: call precision.prepare"):
                one.prepare(given)
    with pytest.raises(RuntimeError, match="an optimizer comes after its model"):
        precision.prepare(keras.optimizers.Adam())
    stranger = keras.optimizers.Adam()
    stranger.build(plain().trainable_variables)
    with pytest.raises(RuntimeError, match=r"built for sequential\w*/dense\w*/kernel, a variable of no prepared model"):
        precision.prepare(stranger)
    for given in ((), ("adam",), (tf.compat.v1.train.AdamOptimizer(),)):
        with pytest.raises(TypeError, match=r"precision\.prepare takes functions that make models, and optimizers"):
            precision.prepare(*given)
    with pytest.raises(SettingsError, match=r"precision=o4 is not one of|o4"):
        Precision("o4")


def loss_of(precision: Precision, model: keras.Model) -> tf.Tensor:
    with precision:
        return cross_entropy(LABELS, model(IMAGES, training=True))


def test_calls_out_of_order_are_refused():
    fresh = Precision("o2")
    with pytest.raises(RuntimeError, match=r"backward\(loss\) comes after precision\.prepare"):
        fresh.backward(tf.constant(1.0))
    precision, model, optimizer = prepared("o2")
    with pytest.raises(RuntimeError, match=r"backward\(loss\) comes after `with precision:`"):
        precision.backward(cross_entropy(LABELS, model(IMAGES)))
    for call in (lambda: precision.backward(tf.constant(1.0)), lambda: precision.step(optimizer)):
        with precision, pytest.raises(RuntimeError, match="is inside `with precision:`: end the block first"):
            call()
    with precision, pytest.raises(RuntimeError, match="inside of another one"), precision:
        pass
    with pytest.raises(RuntimeError, match=r"step\(optimizer\) comes after precision\.backward\(loss\)"):
        precision.step(optimizer)
    precision.backward(loss_of(precision, model))
    precision.step(optimizer)
    with pytest.raises(RuntimeError, match=r"there was none since this optimizer's last step"):
        precision.step(optimizer)
    loss = loss_of(precision, model)
    loss_of(precision, model)
    with pytest.raises(RuntimeError, match="the loss depends on no weight that is stepped"):
        precision.backward(loss)
    with pytest.raises(RuntimeError, match="this optimizer isn't prepared by it"):
        precision.step(keras.optimizers.Adam())
    with pytest.raises(TypeError, match="takes optimizers, one after another, and was given list"):
        precision.step([optimizer])
    with pytest.raises(TypeError, match="needs the optimizers that step"):
        precision.step()
    with pytest.raises(ValueError, match="clip=0 would leave nothing of the gradients"):
        precision.step(optimizer, clip=0)
    with pytest.raises(TypeError, match="was given 'big'"):
        precision.step(optimizer, clip="big")


@pytest.mark.parametrize(
    ("loss", "error", "problem"),
    [
        (lambda: 1.0, TypeError, "takes the loss as a tensor, and was given float"),
        (lambda: tf.ones((), tf.bfloat16), RuntimeError, "the loss is bfloat16 and must be float32"),
        (lambda: tf.ones(3), ValueError, r"one of shape \[3\]: take its tf.reduce_mean"),
    ],
)
def test_a_loss_that_is_no_float32_scalar_is_refused(loss, error, problem):
    precision, *_ = prepared("o2")
    with pytest.raises(error, match=problem):
        precision.backward(loss())


def test_o1_needs_a_graph():
    precision, *_ = prepared("o1")
    with (
        pytest.raises(RuntimeError, match="o1 rewrites graphs, and here is none: put `with precision:` into a @tf"),
        precision,
    ):
        pass


def test_calls_in_different_functions_are_refused():
    precision, model, optimizer = prepared("o2")

    @tf.function
    def loop():
        for _ in tf.range(2):
            precision.backward(loss_of(precision, model))
        precision.step(optimizer)

    with pytest.raises(RuntimeError, match="not behind a loop of tensors that has it"):
        loop()
    loss = loss_of(precision, model)
    with pytest.raises(RuntimeError, match=r"comes after `with precision:`.* in the same function"):
        tf.function(lambda: precision.backward(loss))()


def test_without_a_mode_it_says_which_one_it_took(capsys):
    Precision()
    Precision("o0")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("amp-launcher:")]
    assert (
        line
        == 'amp-launcher: Precision() outside of the launcher is o1 (bfloat16) on cpu; Precision("o2") names a mode'
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [("from_env", 'precision = Precision("o2")'), ("cast", "precision.prepare"), ("update", "precision.step")],
)
def test_an_older_name_says_what_took_its_place(name, instead):
    with pytest.raises(AttributeError, match=f"Precision.{name} is gone: write .*") as caught:
        getattr(Precision, name)
    assert instead in str(caught.value)
