"""torch's own profiler in a run, and around a user's script."""

from __future__ import annotations

import json

import pytest
import torch

from amp_launcher.recipes.mnist.train_torch import train
from amp_launcher.settings import Profile
from amp_launcher.torch import profiling
from amp_launcher.torch.hardware import TorchDevice
from amp_launcher.torch.loop import main
from tests.amp_launcher.torch import trainers
from tests.amp_launcher.torch.scripts import PLAIN
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

TRACE = "profile/rank0.pt.trace.json"


@pytest.fixture
def run(tmp_path):
    """Trains with torch's profiler in this process: the result and the rows of the steps."""

    def start(*words, ends=0):
        words = [*words, "data=synthetic", "batch=8", "profile=framework", f"run={tmp_path}/run", "device=cpu"]
        assert main("mnist", train, words) == ends
        return trainers.result(tmp_path / "run"), trainers.steps(tmp_path / "run")

    return start


def test_a_profiled_run_is_proved_and_leaves_a_trace_of_steps_that_are_not_timed(run, tmp_path):
    result, rows = run("amp=o1", "steps=30", "profile.start=20", "profile.steps=2")
    assert result["observed"]["verdict"] == "proved"
    profile = result["profile"]
    first, last = profile["steps"]
    assert 20 <= first <= last <= first + 1
    assert (profile["tool"], profile["trace"]) == ("framework", TRACE)
    assert profile["tensor_core_share"] is None, "a CPU has none"
    events = json.loads((tmp_path / "run" / TRACE).read_text())["traceEvents"]
    assert {"aten::conv2d", "aten::mm"} <= {event.get("name") for event in events}
    assert not any(row["timed"] for row in rows if first <= row["step"] <= last)
    assert any(row["timed"] for row in rows)


def test_a_run_that_is_stopped_in_the_middle_of_a_profile_keeps_what_was_recorded(run, tmp_path, monkeypatch):
    begin = profiling.FrameworkProfiler.start

    def start(profiler):
        begin(profiler)
        (tmp_path / "run" / "STOP").touch()

    monkeypatch.setattr(profiling.FrameworkProfiler, "start", start)
    result, _ = run("amp=o0", "steps=400", "profile.steps=150", "profile.start=3", ends=85)
    first, last = result["profile"]["steps"]
    assert last == result["steps"] < first + 149, "it ends where the run did"
    assert (tmp_path / "run" / TRACE).stat().st_size > 1000


def test_a_script_is_profiled_beside_its_observed_steps(tmp_path, run_script):
    code, _, result = run_script("torch", PLAIN, "amp=o1", "profile=framework", "profile.start=4")
    assert (code, result["observed"]["verdict"], result["profile"]["steps"]) == (0, "proved", [4, 8])
    assert (tmp_path / "run" / TRACE).stat().st_size > 1000 and result["peak_memory_bytes"] > 2**26
    _, printed, result = run_script("torch", PLAIN, "amp=o1", "profile=framework", "profile.start=99")
    assert result["profile"] == {}
    assert "recorded nothing: 60 optimizer steps were seen, and profile.start=99" in printed.err


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_nvidias_profilers_get_their_range_on_a_gpu_alone(tool):
    assert profiling.make(Profile(tool=tool), torch.device("cpu"), 0) is None
    assert isinstance(profiling.make(Profile(tool=tool), torch.device("cuda"), 0), profiling.CudaRange)


@pytest.mark.parametrize(
    ("intervals", "length"), [([], 0), ([(0, 2), (5, 6)], 3), ([(4, 9), (0, 5), (1, 2)], 9), ([(0, 1), (1, 2)], 2)]
)
def test_kernels_that_overlap_count_once(intervals, length):
    assert profiling.covered(intervals) == length


def test_the_kernels_of_one_step_before_the_timed_ones_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(TorchDevice, "record_kernels", lambda _: lambda: 1e-9)  # a CPU has none
    assert not main("mnist", train, ["data=synthetic", "batch=8", "steps=30", f"run={tmp_path}/run", "device=cpu"])
    (step,) = [row for row in trainers.steps(tmp_path / "run") if "gpu_seconds" in row]
    assert step["step"] == 6
    assert 0 < trainers.result(tmp_path / "run")["throughput"]["gpu_busy_share"] < 1
