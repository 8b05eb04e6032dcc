"""Graphs and sessions of TensorFlow 1."""

# ruff: noqa: F821 - names of head_tensorflow.py


@guest(o0="proved", o1="proved")
def session_without_eager_execution():
    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    with tf1.Session() as session:
        losses = run_steps(session, x, y, train, loss)
    print(losses[-1])


@guest(o0="proved", o1="proved")
def session_without_the_behaviour_of_version_2():
    tf1.disable_v2_behavior()
    x, y, loss = linear()
    train = tf1.train.AdamOptimizer(0.01).minimize(loss)
    with tf1.Session() as session:
        losses = run_steps(session, x, y, train, loss)


@guest(o0="proved")
def session_with_a_configuration():
    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        losses = run_steps(session, x, y, train, loss)


@guest(o1="proved")
def session_with_a_configuration_that_has_the_rewrite():
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    config = tf1.ConfigProto(allow_soft_placement=True)
    if __by_hand:  # the launcher adds it
        config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.ON
    with tf1.Session(config=config) as session:
        losses = run_steps(session, x, y, train, loss)


@guest(o1="contradicted")
def session_whose_configuration_switches_the_rewrite_off():
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.OFF
    with tf1.Session(config=config) as session:
        losses = run_steps(session, x, y, train, loss)


@guest(o0="proved", o1="proved")
def monitored_session_with_a_global_step_in_a_graph_of_its_own():
    tf1.disable_v2_behavior()
    with tf.Graph().as_default():
        tf1.set_random_seed(3)
        x, y, loss = linear()
        step = tf1.train.get_or_create_global_step()
        train = tf1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        with tf1.train.MonitoredTrainingSession() as session:
            losses = [session.run((train, loss), {x: inputs[at:], y: targets[at:]})[1] for at in (0, 8, 16, 24)]
            evaluated = session.run(loss, {x: inputs, y: targets}), session.run(step)


@guest(o0="proved")
def run_metadata_of_the_script_is_its_own():
    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    told, asked = tf1.RunMetadata(), tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(train, {x: inputs, y: targets}, options=asked, run_metadata=told)
    partitions, stepped, option = len(told.partition_graphs), told.HasField("step_stats"), asked.output_partition_graphs


@guest(o0="proved", o1="proved")
def the_frameworks_own_rewrite_for_gpus_does_nothing_on_a_cpu():
    tf1.disable_eager_execution()
    x, y, loss = linear()
    optimizer = tf1.train.GradientDescentOptimizer(0.01)
    train = tf1.mixed_precision.enable_mixed_precision_graph_rewrite(optimizer).minimize(loss)
    with tf1.Session() as session:
        losses = run_steps(session, x, y, train, loss)


@guest(script="proved")
def our_rewrite_in_a_session_with_a_configuration():
    from amp_launcher.tensorflow.graph_rewrite import enable

    tf1.disable_eager_execution()
    x, y, loss = linear()
    train = enable(tf1.train.GradientDescentOptimizer(0.01)).minimize(loss)
    with tf1.Session(config=tf1.ConfigProto()) as session:
        losses = run_steps(session, x, y, train, loss)


@guest(script="unknown")
def our_rewrite_refuses_gradients_of_a_tape_without_a_scaled_loss():
    from amp_launcher.tensorflow.graph_rewrite import enable

    weights = tf.Variable(tf.zeros((16, 4)))
    optimizer = enable(tf.keras.optimizers.SGD(0.01))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])

    try:
        step()
    except RuntimeError as error:
        refused = "that was not scaled" in str(error)
    assert refused
