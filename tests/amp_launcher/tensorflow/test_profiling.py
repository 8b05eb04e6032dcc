"""TensorFlow's own profiler in a run, and what is read in its traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from amp_launcher.precision.gpu_kernels import tensor_core_share
from amp_launcher.tensorflow.profiling import FrameworkProfiler, _kernels
from tests.amp_launcher.contract.runs import train
from tests.amp_launcher.torch.trainers import result
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script


def names_in(folder: Path) -> set[str]:
    """Of the events in the one trace that lies there."""
    (trace,) = folder.rglob("*.xplane.pb")
    planes = xplane_pb2.XSpace.FromString(trace.read_bytes()).planes
    return {meta.name for plane in planes for meta in plane.event_metadata.values()}


def test_a_run_leaves_a_trace_and_is_proved_all_the_same(tmp_path):
    words = ("amp=o2", "train.width=32", "batch=16", "profile=framework", "profile.start=4", "profile.steps=2")
    record = result(train("tensorflow", "simplenet", tmp_path, *words))
    assert record["observed"]["verdict"] == "proved"
    profile = record["profile"]
    assert (profile["tool"], profile["trace"]) == ("framework", "profile/plugins/profile")
    assert profile["tensor_core_share"] is None
    assert any("MatMul" in name for name in names_in(tmp_path / profile["trace"]))


def test_processes_of_one_host_leave_a_trace_each(tmp_path):
    """As they do where they begin and end in the same second, by which TensorFlow names a folder."""
    for rank in (0, 1):
        one = FrameworkProfiler(rank)
        one.start()
        tf.zeros(1) + 1
        one.stop(tmp_path)
    traces = sorted(tmp_path.rglob("*.xplane.pb"))
    assert len({path.name for path in traces}) == 2
    assert sorted(path.name.partition(".")[0] for path in traces) == ["rank0", "rank1"]


SCRIPT = """
import keras, sys, numpy, tensorflow as tf
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16)])
inputs = numpy.ones((64, 32), "float32")
if sys.argv[1] == "fit":
    net.compile(optimizer="sgd", loss="mse", steps_per_execution=int(sys.argv[2]))
    net.fit(inputs, inputs[:, :16], batch_size=4, verbose=0)
else:
    optimizer = keras.optimizers.SGD(0.01)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(inputs) ** 2)
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

    step = tf.function(step) if sys.argv[1] == "graph" else step
    for _ in range(int(sys.argv[2])):
        step()
"""


@pytest.mark.parametrize(
    ("arguments", "words", "steps", "instead_of", "note"),
    [
        (("fit", "1"), ("profile.start=10",), [10, 14], None, ""),
        (("fit", "8"), ("profile.start=9",), [9, 16], None, ""),
        (("fit", "4"), ("profile.start=10",), [13, 16], [10, 14], "profiling steps 13 to 17 instead of steps 10 to 14"),
        # The last execution of an epoch has one step instead of five.
        (("fit", "5"), ("profile.start=3", "profile.steps=20"), [6, 16], [3, 22], "instead of steps 3 to"),
        (("graph", "12"), ("profile.start=9",), [9, 12], None, ""),
        (("eager", "16"), ("profile.start=9",), [9, 13], None, ""),
        (
            *(("graph", "8"), ("profile.start=9",), None, None),
            "profile=framework recorded nothing: 8 optimizer steps were seen, and profile.start=9",
        ),
    ],
)
def test_a_script_is_profiled_from_where_one_of_its_executions_ends(
    tmp_path, run_script, arguments, words, steps, instead_of, note
):
    words = ("amp=o0", "profile=framework", *words, "require_proof=false")
    code, printed, result = run_script("tensorflow", SCRIPT, *words, passed=arguments)
    assert code == 0 and note in printed.out + printed.err, printed
    profile = result["profile"]
    assert profile.get("steps") == steps
    if steps:
        assert profile["instead_of"] == instead_of
        assert any("MatMul" in name for name in names_in(tmp_path / "run" / profile["trace"]))
    assert result["steps"] == (int(arguments[1]) if arguments[0] != "fit" else 16)


def test_a_gpus_kernels_are_those_of_its_streams(tmp_path):
    """As TensorFlow lays out a trace: nobody recorded one of a GPU here."""
    space = xplane_pb2.XSpace()
    for plane_name, line_name, kernel, picoseconds in (
        ("/device:GPU:0", "Stream #13(Compute)", "nvjet_tst_192x192", 3_000_000),
        ("/device:GPU:0", "Stream #13(Compute)", "EigenMetaKernel", 1_000_000),
        ("/device:GPU:0", "TensorFlow Ops", "MatMul", 9_000_000),
        ("/host:CPU", "Stream #1", "nvjet_tst_192x192", 9_000_000),
    ):
        plane = space.planes.add(name=plane_name)
        plane.event_metadata[1].name = kernel
        plane.lines.add(name=line_name).events.add(metadata_id=1, duration_ps=picoseconds)
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    kernels = _kernels(tmp_path / "host.xplane.pb")
    assert kernels == {"nvjet_tst_192x192": 3.0, "EigenMetaKernel": 1.0}
    assert tensor_core_share(kernels) == 0.75
