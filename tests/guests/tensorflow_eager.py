"""Loops of TensorFlow 2 and Keras."""

# ruff: noqa: F821 - names of head_tensorflow.py


@guest(o0="proved", o1="proved")
def keras_optimizer_on_plain_variables():
    weights, bias = tf.Variable(tf.random.normal((16, 4))), tf.Variable(tf.zeros(4))
    optimizer = tf.keras.optimizers.Adam(0.01)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights + bias - targets) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights, bias]), [weights, bias]))
        return loss

    losses = [float(step()) for _ in range(4)]


@guest(o0="proved")
def keras_optimizer_on_a_layers_and_a_plain_variable():
    layer, scale = tf.keras.layers.Dense(4), tf.Variable(1.0)
    layer.build((None, 16))
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(inputs) * scale - targets) ** 2)
        variables = [*layer.trainable_variables, scale]
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    losses = [float(step()) for _ in range(4)]


@guest(o0="proved", o1="proved")
def keras_fit():
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(4)])
    model.compile(optimizer="sgd", loss="mse")
    history = model.fit(inputs, targets, batch_size=8, epochs=2, verbose=0).history
    weights = [weight.numpy() for weight in model.weights]


@guest(o0="proved")
def updates_by_hand_of_plain_variables():
    weights = tf.Variable(tf.random.normal((16, 4)))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    losses = [float(step()) for _ in range(4)]


@guest(o0="proved")
def an_exit_after_training():
    import os

    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    model.compile(optimizer="sgd", loss="mse")
    print(model.fit(inputs, targets, batch_size=32, epochs=1, verbose=0).history, flush=True)
    os._exit(0)


@guest(o0="proved", o1="contradicted")
def a_step_that_xla_compiles_as_a_whole():
    weights = tf.Variable(tf.random.normal((16, 4)))
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build([weights])

    @tf.function(jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        optimizer.apply([tape.gradient(loss, weights)], [weights])
        return loss

    losses = [float(step()) for _ in range(4)]
