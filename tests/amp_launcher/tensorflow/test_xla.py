"""What XLA compiled, read from its programs. As a program, it prints what was observed where XLA looks for clusters."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from amp_launcher.precision.levels import Amp
from amp_launcher.tensorflow import xla
from amp_launcher.tensorflow.observe import hlo
from tests.amp_launcher import forking
from tests.amp_launcher.tensorflow.observed_runs import Training, dense_network


@pytest.fixture(scope="module")
def xla_folder():
    """XLA reads where to dump to once in a process: before it compiles anything."""
    xla.dump_programs(True)
    return xla.folder()


def test_under_xla_what_it_compiled_is_read(xla_folder):
    training = Training(Amp(level="o0"), dense_network, xla=True)
    observed = training.run()
    assert observed["verdict"] == "proved", observed["why"]
    assert observed["xla_clusters"] >= 1
    report = training.observer.reports[0]
    assert all(call["compiled"] for call in report["calls"])
    assert sum(call["flops"] for call in report["calls"] if not call["backward"]) == 2 * 4 * (144 * 64 + 64 * 10)


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_half_precision_that_xla_makes_float32_is_contradicted_so_the_table_has_a_hole_there(xla_folder, level):
    """Both levels with xla on a CPU are refused; forced past that, the program that ran is seen for what it is."""
    training = Training(Amp(level=level), dense_network)
    training.execute = tf.function(training.step, autograph=False, jit_compile=True)
    observed = training.run()
    assert observed["verdict"] == "contradicted"
    assert "dot in float32" in observed["why"] or "MatMul in float32" in observed["why"]


def test_what_runs_in_clusters_that_xla_found_is_counted_with_what_runs_beside_them():
    """As it does at o1 on a GPU; on a CPU it takes a flag, and the clusters of o1 compute in float32."""
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
    ended = forking.run(__name__, TF_XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    observed = json.loads(ended.stdout.splitlines()[-1])
    assert observed["o0"]["verdict"] == "proved", observed["o0"]["why"]
    assert set(observed["o0"]["compiled"]) == {True, False}
    assert observed["o0"]["xla_clusters"] >= 1
    assert observed["o1"]["verdict"] == "contradicted"


SCRIPT = """
import keras
import tensorflow as tf
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(net.trainable_variables)

@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 32])])
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(x) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

for samples in (8, 8, 8, 8, 9, 10):
    step(tf.ones([samples, 32]))
"""
"""XLA compiles the same function for each batch size: two of the three after the first judgement."""


def test_programs_compiled_later_for_a_function_of_a_script_that_is_known_by_then_are_read_too(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["amp=o0", f"script={tmp_path}/train.py", f"run={tmp_path}/run", "device=cpu", f"workdir={tmp_path}"]
    flags = f"--xla_dump_to={tmp_path}/programs --xla_dump_hlo_as_text"
    ended = forking.run("amp_launcher.tensorflow.script", *words, XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    observed = json.loads((tmp_path / "run" / "result.json").read_text())["observed"]
    assert observed["verdict"] == "proved", observed["why"]
    assert observed["xla_clusters"] == len(hlo.modules(tmp_path / "programs")) == 3


FIT = """
import keras
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
net.compile(optimizer="sgd", loss="mse", jit_compile=True)
net.fit(keras.ops.ones((64, 32)), keras.ops.ones((64, 1)), batch_size=32, epochs=2, verbose=0)
"""
DROPPED = """
tf.function(lambda x: x + 1, jit_compile=True)(tf.ones([2]))
"""
LOOP = (
    SCRIPT.replace("optimizer.build", f"{DROPPED}optimizer.build")
    .replace(", input_signature=[tf.TensorSpec([None, 32])]", "")
    .replace("9, 10", "8, 8")
)
IN_GRAPH = "MatMul in a function that jit_compile=True compiles"


@pytest.mark.parametrize(
    ("text", "level", "dumped", "verdict", "why"),
    [
        (FIT, "o0", False, "proved", f"unknown work, which follows the level: {IN_GRAPH} (5 calls)"),
        (FIT, "o0", True, "proved", "at step 1 on 1 rank"),
        (FIT, "o2", False, "unknown", f"{IN_GRAPH} can't be counted"),
        (FIT, "o2", True, "contradicted", "MatMul in float32"),
        (LOOP, "o0", False, "proved", f"unknown work, which follows the level: {IN_GRAPH} (5 calls)"),
        (LOOP, "o2", False, "unknown", f"{IN_GRAPH} can't be counted"),
    ],
)
def test_what_xla_compiles_is_read_from_its_programs_or_in_float32_from_the_graph(
    tmp_path, text, level, dumped, verdict, why
):
    (tmp_path / "train.py").write_text(text)
    words = [f"amp={level}", f"script={tmp_path}/train.py", f"run={tmp_path}/run", "device=cpu", f"workdir={tmp_path}"]
    flags = f"--xla_dump_to={tmp_path}/programs --xla_dump_hlo_as_text" if dumped else ""
    ended = forking.run("amp_launcher.tensorflow.script", *words, XLA_FLAGS=flags)
    observed = json.loads((tmp_path / "run" / "result.json").read_text())["observed"]
    assert (observed["verdict"], why in observed["why"]) == (verdict, True), observed["why"]
    assert ended.returncode == (verdict == "contradicted")


MODULE = """
HloModule jit_step

%fused (param_0: bf16[8,32], param_1: bf16[32,64]) -> f32[8,64] {
  %param_0 = bf16[8,32]{1,0} parameter(0)
  %param_1 = bf16[32,64]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,64]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_type="MatMul" op_name="net/dense/MatMul"}
}

ENTRY %main (a: f32[4,12,12,3], k: f32[3,3,3,16]) -> f32[4,10,10,16] {
  %a = f32[4,12,12,3]{3,2,1,0} parameter(0)
  %k = f32[3,3,3,16]{3,2,1,0} parameter(1)
  %conv = f32[4,10,10,16]{3,2,1,0} convolution(%a, %k), window={size=3x3}, dim_labels=b01f_01io->b01f, metadata={op_type="Conv2D" op_name="net/conv/Conv2D"}
  %h = f16[8,32]{1,0} parameter(2)
  %w = f16[32,64]{1,0} parameter(3)
  %gemm = (f16[8,64]{1,0}, s8[4194304]{0}) custom-call(%h, %w), custom_call_target="__cublas$gemm", metadata={op_type="MatMul" op_name="gradient_tape/net/MatMul"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %what = f32[8,64]{1,0} custom-call(%h), custom_call_target="__mystery$matmul"
}
"""  # noqa: E501


def test_an_hlo_module_is_read_with_fusions_and_library_calls():
    observed = hlo.read(MODULE, None, "cuda")
    seen = {(call["operation"], call["dtype"], call["backward"], call["flops"]) for call in observed.calls}
    assert seen == {
        ("dot", "bfloat16", False, 2 * 8 * 32 * 64),
        ("convolution", "float32", False, 2 * 4 * 100 * 16 * 27),
        ("__cublas$gemm", "float16", True, 2 * 8 * 32 * 64),
    }
    assert dict(observed.unaccounted) == {"__mystery$matmul": 1}
    assert [call["functions"] for call in observed.calls] == [["MatMul"], ["Conv2D"], ["MatMul"]]


if __name__ == "__main__":
    xla.dump_programs(True)
    tf.config.optimizer.set_jit("autoclustering")
    runs = {}
    for level in ("o0", "o1"):
        training = Training(Amp(level=level), dense_network)
        runs[level] = training.run()
        runs[level]["compiled"] = [call["compiled"] for call in training.observer.reports[0]["calls"]]
    print(json.dumps(runs))
