"""Grappler's rewrite and its lists: on a CPU for real, and to float16 for a GPU that is made up."""

from __future__ import annotations

import os
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2
from tensorflow.python.framework import meta_graph
from tensorflow.python.grappler import cluster, tf_optimizer

import amp_launcher.tensorflow
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.support import ONEDNN
from amp_launcher.tensorflow import SCRIPT
from amp_launcher.tensorflow.observe.graphs import dtype_of
from amp_launcher.tensorflow.precision import Mechanism, grappler

IGNORE_PERFORMANCE = f"{grappler.PREFIX}_IGNORE_PERFORMANCE"


def test_an_operation_is_taken_off_three_lists_as_it_is_put_on_the_fourth():
    variables = grappler.variables({"allow": ["Softmax"], "deny": ["MatMul", "Conv2D"], "infer": ["Relu"]})
    assert variables == {
        f"{grappler.PREFIX}_ALLOWLIST_ADD": "Softmax",
        f"{grappler.PREFIX}_ALLOWLIST_REMOVE": "MatMul,Conv2D,Relu",
        f"{grappler.PREFIX}_DENYLIST_ADD": "MatMul,Conv2D",
        f"{grappler.PREFIX}_DENYLIST_REMOVE": "Softmax,Relu",
        f"{grappler.PREFIX}_INFERLIST_ADD": "Relu",
        f"{grappler.PREFIX}_INFERLIST_REMOVE": "Softmax,MatMul,Conv2D",
        f"{grappler.PREFIX}_CLEARLIST_REMOVE": "Softmax,MatMul,Conv2D,Relu",
    }
    assert grappler.variables({}) == {}


def test_what_an_image_has_set_is_not_mixed_with_ours():
    """By its name of today or by TensorFlow's former one."""
    theirs = dict.fromkeys(("DENYLIST_ADD", "BLACKLIST_ADD", "GRAYLIST_REMOVE", "CLEARLIST_ADD", "LEVEL"), "2")
    environ = {**{f"{grappler.PREFIX}_{name}": value for name, value in theirs.items()}, "HOME": "/root"}
    ours = {"deny": ["MatMul"]}
    grappler.switch_on("bfloat16", ours, environ)
    assert environ == {**grappler.variables(ours), "HOME": "/root"}


def test_the_other_rewrite_is_switched_off_as_one_is_switched_on():
    for dtype, other in (("float16", "bfloat16"), ("bfloat16", "float16")):
        grappler.switch_on(dtype, {})
        options = tf.config.optimizer.get_experimental_options()
        assert options[grappler.OPTIONS[dtype]] is True
        assert options[grappler.OPTIONS[other]] is False


@pytest.fixture(scope="module")
def training():
    """A graph of one training step, as a GPU's, ready to be optimized."""
    graph = tf.Graph()
    with graph.as_default(), tf.device("/device:GPU:0"):
        tf.random.set_seed(0)  # another test may have made this process a deterministic one
        images = tf.compat.v1.placeholder(tf.float32, (8, 16, 16, 4))
        kernel = tf.compat.v1.get_variable("kernel", (3, 3, 4, 8), use_resource=True)
        weight = tf.compat.v1.get_variable("weight", (8 * 14 * 14, 8), use_resource=True)
        hidden = tf.reshape(tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "VALID")), (8, -1))
        loss = tf.reduce_sum(tf.square(tf.nn.softmax(tf.matmul(hidden, weight))))
        gradients = tf.gradients(loss, [kernel, weight])
        step = tf.group(kernel.assign_sub(gradients[0]), weight.assign_sub(gradients[1]))
        for node in (step, loss):
            graph.add_to_collection("train_op", node)
    return meta_graph.create_meta_graph_def(graph=graph)


def device(kind: str, **environment: str):
    named = device_properties_pb2.NamedDevice(name=f"/job:localhost/replica:0/task:0/device:{kind}:0")
    named.properties.type, named.properties.num_cores, named.properties.frequency = kind, 8, 1000
    for key, value in environment.items():
        named.properties.environment[key] = value
    return named


def rewritten(training) -> dict[str, set[str]]:
    """By operation, the dtypes that it has after the float16 rewrite on a made-up GPU of compute capability 8.0."""
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.auto_mixed_precision, options.min_graph_nodes, options.meta_optimizer_iterations = 1, -1, 1
    options.optimizers.append("auto_mixed_precision")
    gpu = device("GPU", architecture="8.0", cuda="12000", cudnn="8900")
    graph = tf_optimizer.OptimizeGraph(config, training, cluster=cluster.Cluster(devices=[gpu, device("CPU")]))
    dtypes: dict[str, set[str]] = {}
    for node in graph.node:
        dtypes.setdefault(node.op, set()).add(dtype_of(node))
    return dtypes


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, {"float16": ["MatMul", "Conv2D", "Conv2DBackpropFilter", "Relu"], "float32": ["Sum"]}),
        ({"deny": ["Conv2D"]}, {"float16": ["MatMul"], "float32": ["Conv2D", "Conv2DBackpropFilter"]}),
        # A product on `clear` and a softmax on `infer` follow the denied convolution before them.
        (
            {"deny": ["Conv2D"], "infer": ["Softmax"], "clear": ["MatMul"]},
            {"float32": ["MatMul", "Conv2D", "Softmax"]},
        ),
        ({"infer": ["Softmax"]}, {"float16": ["Softmax"]}),
    ],
    ids=["none", "deny", "deny, infer and clear", "infer"],
)
def test_for_a_gpu_products_become_float16_by_the_lists(training, monkeypatch, lists, expected):
    monkeypatch.setenv(IGNORE_PERFORMANCE, "1")
    Mechanism.of(Amp(level="o1", **{name: tuple(entries) for name, entries in lists.items()}), LossScale(), "cpu")
    dtypes = rewritten(training)
    for dtype, operations in expected.items():
        assert {name: dtypes[name] for name in operations} == {name: {dtype} for name in operations}


def test_an_operation_left_on_two_lists_would_leave_the_whole_graph_as_it_is(training, monkeypatch):
    """TensorFlow's own trap: only a line in the log says so."""
    monkeypatch.setenv(IGNORE_PERFORMANCE, "1")
    monkeypatch.setenv(f"{grappler.PREFIX}_DENYLIST_ADD", "MatMul")
    dtypes = rewritten(training)
    assert dtypes["MatMul"] == dtypes["Conv2D"] == {"float32"}


@pytest.mark.parametrize(("started", "switched"), [("recipes.mnist.train_tensorflow", "1"), (SCRIPT, None)])
def test_by_hand_the_rewrite_is_there_on_any_cpu_and_a_script_computes_what_it_does_alone(
    monkeypatch, started, switched
):
    """Before TensorFlow is imported, when it would read this."""
    monkeypatch.delenv(ONEDNN, raising=False)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", started, "amp=o1"])
    amp_launcher.tensorflow._import_quietly()
    assert os.environ.get(ONEDNN) == switched
