"""The TensorFlow recipe's step against a loop written by hand in plain Keras and TensorFlow, step by step in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured, Skipped, Timing

EPOCHS = 12
LIMIT = 1.03


def o0(folder: Path) -> Measured:
    return _measure(folder, "o0")


def o1(folder: Path) -> Measured:
    return _measure(folder, "o1")


def o2(folder: Path) -> Measured:
    return _measure(folder, "o2")


def _measure(folder: Path, level: str) -> Measured:
    try:
        import tensorflow as tf
    except ImportError:
        raise Skipped("TensorFlow is not installed") from None
    tf.config.threading.set_intra_op_parallelism_threads(1)
    from recipes.tensorflow_ import executor, loop, mnist

    ours, theirs = f"the recipe's step at {level} in TensorFlow", "a hand-written step"
    turns: list[Turns] = []

    def train(run: Any) -> None:
        turns.append(Turns(run))
        mnist.train(run)

    execute = executor.Steps.execute

    def around(steps: Any, shares: Any, first: int, count: int) -> Any:
        turns[0].turn(shares[first, 0])
        return execute(steps, shares, first, count)

    words = [f"amp={level}", f"epochs={EPOCHS}", "checkpoint.every=0", f"run={folder / 'run'}"]
    with open(folder / "out", "w", encoding="utf-8") as out, contextlib.redirect_stdout(out):
        executor.Steps.execute = around  # type: ignore[method-assign]
        try:
            code = loop.main("mnist", train, words)
        finally:
            executor.Steps.execute = execute  # type: ignore[method-assign]
    if code != loop.DONE:
        raise RuntimeError(f"the recipe ended with exit code {code}")
    timings = {ours: Timing(seconds=tuple(turns[0].ours)), theirs: Timing(seconds=tuple(turns[0].theirs))}
    return Measured(
        name=f"tensorflow-step-{level}",
        claim=f"a step of the recipe at {level} in TensorFlow at most {LIMIT} times a hand-written one",
        limit=LIMIT,
        ours=ours,
        theirs=theirs,
        timings=timings,
        note="mnist on digits, batch 128; all that happens between two steps counts, observed steps do not",
    )


class Turns:
    """Between the recipe's steps, steps of the hand-written loop: the recipe's time is from one turn to the next."""

    def __init__(self, run: Any) -> None:
        from recipes.data import images
        from recipes.trainer.training import choose_steps

        self.ours: list[float] = []
        self.theirs: list[float] = []
        data = images.load(run.settings.data, run.settings.seed)
        self._hand = _hand_written(run, data)
        self._per_epoch, self._number = len(data.train) // run.settings.batch, 0
        self._watched = choose_steps(EPOCHS * self._per_epoch, run.settings.seed)
        self._began: float | None = None

    def turn(self, chosen: Any) -> None:
        """The recipe is about to take a step with these samples."""
        within, number = self._number % self._per_epoch, self._number + 1
        self._number += 1
        now = time.perf_counter()
        if self._began is not None:
            self.ours.append(now - self._began)
            self._began = None
        # What is observed, and the end of an epoch with its evaluation, are no part of a step.
        if within + 1 < self._per_epoch and number not in self._watched:
            began = time.perf_counter()
            self._hand(chosen)
            self.theirs.append(time.perf_counter() - began)
            self._began = time.perf_counter()


def _hand_written(run: Any, data: Any) -> Callable[[Any], None]:
    """A step as one would write it; at o1 the recipe's own switch rewrites this graph too."""
    import keras
    import tensorflow as tf

    from recipes.tensorflow_ import mnist
    from recipes.tensorflow_.supervised import channels_last

    inputs, labels = tf.constant(channels_last(data.train.images)), tf.constant(data.train.labels)
    keras.config.set_dtype_policy("mixed_bfloat16" if run.settings.amp.level == "o2" else "float32")
    model = mnist.network(run.settings.train)
    keras.config.set_dtype_policy("float32")
    hyper = run.settings.train
    optimizer = keras.optimizers.Adadelta(hyper.lr, rho=hyper.rho, epsilon=mnist.EPSILON)
    optimizer.build(model.trainable_variables)
    weights = [each.value for each in model.trainable_variables]

    @tf.function(autograph=False)
    def step(chosen: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(tf.gather(inputs, chosen), training=True), tf.float32)
            named = tf.gather(labels, chosen)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(named, logits))
        optimizer.apply(tape.gradient(loss, weights))
        return loss

    return lambda chosen: step(tf.constant(chosen))
