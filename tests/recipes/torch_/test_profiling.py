"""torch's own profiler in a run, and around a user's script."""

from __future__ import annotations

import json

import torch

from recipes.settings import Profile
from recipes.torch_ import profiling
from recipes.torch_.loop import main
from recipes.torch_.mnist import train
from recipes.torch_.script import TorchWrapper
from recipes.trainer import script as shared
from tests.recipes.torch_.test_script import PLAIN

CPU = torch.device("cpu")


def test_a_run_leaves_a_trace_that_holds_its_operations_and_is_proved_all_the_same(tmp_path):
    run = tmp_path / "run"
    words = [
        "amp=o1",
        "data=synthetic",
        "steps=8",
        "batch=8",
        "profile=framework",
        "profile.start=3",
        "profile.steps=2",
    ]
    assert main("mnist", train, [*words, f"run={run}", "device=cpu"]) == 0
    found = json.loads((run / "result.json").read_text())
    assert found["observed"]["verdict"] == "proved"
    profile = found["profile"]
    assert profile["tool"] == "framework"
    assert profile["steps"][1] - profile["steps"][0] in (0, 1)
    assert profile["steps"][0] >= 3
    assert profile["tensor_core_share"] is None  # there is no GPU's time to share
    assert profile["trace"] == "profile/rank0.pt.trace.json"
    events = json.loads((run / profile["trace"]).read_text())["traceEvents"]
    assert {"aten::conv2d", "aten::mm"} <= {each.get("name") for each in events}


def test_profiled_steps_are_not_timed(tmp_path):
    run = tmp_path / "run"
    words = ["amp=o0", "data=synthetic", "steps=30", "batch=8", "profile=framework", "profile.start=20"]
    assert main("mnist", train, [*words, f"run={run}", "device=cpu"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = {row["step"]: row["timed"] for row in rows if "loss" in row and "step" in row and "event" not in row}
    first, last = json.loads((run / "result.json").read_text())["profile"]["steps"]
    assert not any(timed[step] for step in range(first, last + 1))
    assert any(timed.values())


def test_a_run_that_is_stopped_in_the_middle_of_a_profile_keeps_what_was_recorded(tmp_path, monkeypatch):
    run = tmp_path / "run"
    begin = profiling.FrameworkProfiler.start

    def start(profiler):
        begin(profiler)
        (run / "STOP").touch()

    monkeypatch.setattr(profiling.FrameworkProfiler, "start", start)
    words = ["amp=o0", "data=synthetic", "steps=400", "batch=8", "profile=framework", "profile.steps=150"]
    assert main("mnist", train, [*words, "profile.start=3", f"run={run}", "device=cpu"]) == 85
    found = json.loads((run / "result.json").read_text())
    first, last = found["profile"]["steps"]
    assert last == found["steps"] < first + 149, "it ends where the run did"
    assert (run / found["profile"]["trace"]).stat().st_size > 1000


def test_a_script_is_profiled_beside_its_observed_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["x"])
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    (tmp_path / "train.py").write_text(PLAIN)
    words = ["amp=o1", "profile=framework", "profile.start=4", "device=cpu", "script=train.py", f"run={tmp_path}/run"]
    assert shared.main("torch", words, TorchWrapper) == 0
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["observed"]["verdict"] == "proved"
    assert found["profile"]["steps"] == [4, 8]
    assert (tmp_path / "run" / "profile" / "rank0.pt.trace.json").stat().st_size > 1000


def test_nvidias_profilers_are_told_their_range_on_a_gpu_alone():
    for tool in ("nsys", "ncu"):
        assert profiling.make(Profile(tool=tool), CPU, 0) is None
        assert isinstance(profiling.make(Profile(tool=tool), torch.device("cuda"), 0), profiling.CudaRange)
    assert profiling.make(Profile(tool="dlprof"), torch.device("cuda"), 0) is None
    assert profiling.make(Profile(), CPU, 0) is None
