"""TensorFlow's own profiler in a run, and what is read in its traces."""

from __future__ import annotations

import json

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from recipes.kernels import tensor_core_share
from recipes.tensorflow_.loop import main
from recipes.tensorflow_.profiling import _kernels
from recipes.tensorflow_.simplenet import train


def test_a_run_leaves_a_trace_and_is_proved_all_the_same(tmp_path):
    words = ["amp=o2", "train.width=32", "batch=16", "profile=framework", "profile.start=4", "profile.steps=2"]
    assert main("simplenet", train, [*words, f"run={tmp_path}", "device=cpu"]) == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["observed"]["verdict"] == "proved"
    profile = found["profile"]
    assert (profile["tool"], profile["trace"], profile["tensor_core_share"]) == (
        "framework",
        "profile/plugins/profile",
        None,
    )
    (trace,) = (tmp_path / profile["trace"]).rglob("*.xplane.pb")
    names = {
        meta.name
        for plane in xplane_pb2.XSpace.FromString(trace.read_bytes()).planes
        for meta in plane.event_metadata.values()
    }
    assert any("MatMul" in each for each in names)


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
    found = _kernels(tmp_path / "host.xplane.pb")
    assert found == {"nvjet_tst_192x192": 3.0, "EigenMetaKernel": 1.0}
    assert tensor_core_share(found) == 0.75
