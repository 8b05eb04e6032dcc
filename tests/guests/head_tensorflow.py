import random

import numpy
import tensorflow as tf

from tests.guests import state

tf1 = tf.compat.v1
state.write_at_exit(globals())
__by_hand = BY_HAND
if __by_hand:  # what the launcher applies at o1 on a CPU
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})

tf.keras.utils.set_random_seed(0)
data = numpy.random.default_rng(0)
inputs, targets = data.standard_normal((32, 16)).astype("float32"), data.standard_normal((32, 4)).astype("float32")


def linear():
    """Placeholders of inputs and targets, and the loss of a linear layer, in the default graph of TensorFlow 1."""
    x, y = tf1.placeholder(tf.float32, (None, 16)), tf1.placeholder(tf.float32, (None, 4))
    weights = tf1.get_variable("weights", (16, 4), initializer=tf1.initializers.random_normal(seed=1))
    return x, y, tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)


def run_steps(session, x, y, *fetches, steps=4):
    """The last of the fetches, after each step."""
    session.run(tf1.global_variables_initializer())
    return [session.run(fetches, {x: inputs, y: targets})[-1] for _ in range(steps)]
