"""The recipes' steps in TensorFlow against loops written by hand in plain Keras, and what making a batch takes.

At o1 the recipe's own switch rewrites the hand-written graphs too: it is the process's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amp_launcher.recipes import resnet50 as resnet50_recipe
from amp_launcher.recipes.data import cifar, imagenet, images, random_regression
from amp_launcher.recipes.efficientnet import ADAM_EPSILON
from amp_launcher.recipes.gan import EPSILON, NOISE, RMSPROP_DECAY
from amp_launcher.recipes.simplenet import STEPS_PER_EPOCH
from benchmarks.steps import HandStep

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from amp_launcher.tensorflow.loop import Run


def one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _built(run: Run, make: Callable[[], keras.Model]) -> keras.Model:
    """The model in the level's dtypes, as a Keras user sets them."""
    import keras

    keras.config.set_dtype_policy("mixed_bfloat16" if run.settings.amp.level == "o2" else "float32")
    model = make()
    keras.config.set_dtype_policy("float32")
    return model


def _weights(optimizer: keras.Optimizer, model: keras.Model) -> Sequence[tf.Variable]:
    optimizer.build(model.trainable_variables)
    return [variable.value for variable in model.trainable_variables]


def _plain(model: keras.Model, optimizer: keras.Optimizer, loss_of: Callable[[tf.Tensor], tf.Tensor]) -> HandStep:
    """The usual hand-written step."""
    import tensorflow as tf

    weights = _weights(optimizer, model)

    @tf.function(autograph=False)
    def step(chosen: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(chosen)
        optimizer.apply(tape.gradient(loss, weights))
        return loss

    return lambda chosen: step(tf.constant(chosen))


def _mnist(run: Run) -> HandStep:
    import keras
    import tensorflow as tf

    from amp_launcher.recipes.mnist import train_tensorflow as mnist

    hyper = run.settings.train
    inputs, labels = _in_memory(images.load(run.settings.data, run.settings.seed).train)
    model = _built(run, lambda: mnist.network(hyper))
    optimizer = keras.optimizers.Adadelta(hyper.lr, rho=hyper.rho, epsilon=mnist.EPSILON)

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        return _cross_entropy(tf.gather(labels, chosen), model(tf.gather(inputs, chosen), training=True))

    return _plain(model, optimizer, loss_of)


def _simplenet(run: Run) -> HandStep:
    import keras
    import tensorflow as tf

    from amp_launcher.recipes.simplenet import train_tensorflow as simplenet

    hyper = run.settings.train
    data = random_regression.load(run.settings.seed, STEPS_PER_EPOCH * run.settings.batch, hyper.width)
    inputs, labels = tf.constant(data.inputs), tf.constant(data.labels)
    model = _built(run, lambda: simplenet.network(hyper))

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        outputs = tf.cast(model(tf.gather(inputs, chosen), training=True), tf.float32)
        return tf.reduce_mean(tf.square(outputs - tf.gather(labels, chosen)))

    return _plain(model, keras.optimizers.SGD(hyper.lr), loss_of)


def _resnet50(run: Run) -> HandStep:
    import keras
    import tensorflow as tf

    from amp_launcher.recipes.resnet50 import train_tensorflow as resnet50

    hyper, batch = run.settings.train, run.settings.batch
    pixels, named, _ = imagenet.synthetic(run.settings.seed, batch, hyper.image_size, hyper.classes)
    inputs, labels = tf.constant(resnet50.normalized(pixels)), tf.constant(named)
    model = _built(run, lambda: resnet50.network(hyper))
    optimizer = keras.optimizers.SGD(hyper.lr, momentum=hyper.momentum)
    decayed = [variable for variable in model.trainable_variables if variable.name == "kernel"]
    rates = map(resnet50_recipe.schedule(run.settings, 500 * batch), range(10**6))
    spread = hyper.label_smoothing / hyper.classes

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(model(inputs, training=True), tf.float32)
        smooth = tf.one_hot(labels, hyper.classes, 1 - hyper.label_smoothing + spread, spread)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(smooth, logits))
        return loss + hyper.weight_decay * tf.add_n([tf.nn.l2_loss(variable.value) for variable in decayed])

    plain = _plain(model, optimizer, loss_of)

    def step(chosen: Any) -> None:
        optimizer.learning_rate.assign(next(rates))
        plain(chosen)

    return step


def _efficientnet(run: Run) -> HandStep:
    import keras
    import tensorflow as tf

    from amp_launcher.recipes.efficientnet import train_tensorflow as efficientnet

    hyper = run.settings.train
    pixels, labels = _in_memory(cifar.load(run.settings.data, run.settings.seed).train)
    model = _built(run, lambda: efficientnet.network(hyper))

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        inputs = tf.image.resize(tf.gather(pixels, chosen), 2 * (hyper.side,)) / 255
        return _cross_entropy(tf.gather(labels, chosen), model(inputs, training=True))

    return _plain(model, keras.optimizers.Adam(hyper.lr, epsilon=ADAM_EPSILON), loss_of)


def _gan(run: Run) -> HandStep:
    import keras
    import tensorflow as tf

    from amp_launcher.recipes.gan import train_tensorflow as gan

    hyper, count = run.settings.train, run.settings.batch
    real, _ = _in_memory(images.load(run.settings.data, run.settings.seed).train)
    generator = _built(run, lambda: gan.generator_network(hyper))
    discriminator = _built(run, gan.discriminator_network)
    makers = keras.optimizers.Adam(hyper.generator_lr, epsilon=EPSILON)
    judges = keras.optimizers.RMSprop(hyper.discriminator_lr, rho=RMSPROP_DECAY, epsilon=EPSILON)
    making, judging = _weights(makers, generator), _weights(judges, discriminator)
    truth = tf.constant(gan.labels(count, hyper))

    def made() -> tf.Tensor:
        return generator(tf.random.uniform((count, NOISE), -1, 1), training=True)

    def entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32)))

    @tf.function(autograph=False)
    def step(chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            maker_loss = entropy(tf.fill((count, 1), hyper.soften), discriminator(made(), training=True))
        makers.apply(tape.gradient(maker_loss, making))
        fake = made()
        both = tf.concat((tf.cast(tf.gather(real, chosen), fake.dtype), fake), 0)
        with tf.GradientTape() as tape:
            judge_loss = entropy(truth, discriminator(both, training=True))
        judges.apply(tape.gradient(judge_loss, judging))
        return maker_loss, judge_loss

    return lambda chosen: step(tf.constant(chosen))


def _taken_and_resized(run: Run) -> HandStep:
    import tensorflow as tf

    size = run.settings.train.side
    pixels, labels = _in_memory(cifar.load(run.settings.data, run.settings.seed).train)

    @tf.function(autograph=False)
    def take(chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.resize(tf.gather(pixels, chosen), (size, size)) / 255, tf.gather(labels, chosen)

    return lambda chosen: take(tf.constant(chosen))


def _taken(run: Run) -> HandStep:
    import tensorflow as tf

    inputs, labels = _in_memory(images.load(run.settings.data, run.settings.seed).train)

    @tf.function(autograph=False)
    def take(chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(inputs, chosen), tf.gather(labels, chosen)

    return lambda chosen: take(tf.constant(chosen))


def _in_memory(part: images.Images) -> tuple[tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    from amp_launcher.tensorflow.supervised import channels_last

    return tf.constant(channels_last(part.images)), tf.constant(part.labels)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32)))


BY_HAND = {
    "mnist": _mnist,
    "simplenet": _simplenet,
    "resnet50": _resnet50,
    "efficientnet": _efficientnet,
    "gan": _gan,
}
INPUTS = {"mnist": _taken, "efficientnet": _taken_and_resized}
"""What makes a batch."""
