"""An error anywhere in the observer makes the verdict unknown, and never reaches the script."""

from __future__ import annotations

from tests.amp_launcher.raising import faults

assert faults
KERAS = """
import keras
import numpy
import tensorflow as tf
keras.utils.set_random_seed(0)
inputs = numpy.ones((4, 4), numpy.float32)
net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer, unused = keras.optimizers.SGD(0.1), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(inputs) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

for _ in range(3):
    step()
with tf.GradientTape() as tape:  # outside of any graph
    loss = tf.reduce_mean(net(inputs) ** 2)
tape.gradient(loss, net.trainable_variables)
callbacks = keras.callbacks.CallbackList()
callbacks.on_train_begin()
callbacks.on_train_batch_end(0, {"loss": 1.0})
callbacks.on_epoch_end(0, {"loss": 1.0})
callbacks.on_train_end()
other = keras.Sequential([keras.layers.ReLU()])
other.compile(run_eagerly=True)
other.predict(inputs, verbose=0)
tf.while_loop(lambda count: count < 1, lambda count: [count + 1], [tf.constant(0)])
print("weights", [value.hex() for value in net.layers[0].kernel.numpy().flatten().tolist()])
"""
SESSION = """
import numpy
import tensorflow as tf
with tf.Graph().as_default():
    weights = tf.compat.v1.get_variable("weights", (2, 1), initializer=tf.compat.v1.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(tf.constant(numpy.ones((4, 2), numpy.float32)), weights) ** 2)
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        print("weights", [value.hex() for value in session.run(weights).flatten().tolist()])
"""
SCRIPTS = {KERAS: "proved", SESSION: "proved"}
"""An error is raised in the first that calls a function: a graph of Keras's is read in each run, as it is a new one."""
THIN = ("begin", "call", "method", "run", "while_loop", "_on_variable")


def test_an_error_in_the_observer_leaves_the_script_alone_and_is_named_in_the_verdict(faults):
    assert not (found := faults("tensorflow", SCRIPTS, ("observe/",), THIN)), "\n".join(found)
