"""Steps of a user's script in torch that its optimizers do not count: DeepSpeed's engine, and CUDA graphs."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from tests.amp_launcher.torch.scripts import HEAD, in_process, loop
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script


@pytest.fixture
def run(run_script, tmp_path):
    """Runs a script, whose text follows `HEAD`, in this process."""
    start = in_process(run_script, tmp_path)
    return lambda text: start(HEAD + textwrap.dedent(text), "amp=o0", "require_proof=false")


@pytest.fixture
def deepspeed(monkeypatch):
    """DeepSpeed is not installed: its place in `sys.modules` is free again after a script with a stand-in for it."""
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "deepspeed")


def test_deepspeeds_engine_counts_where_it_steps_an_optimizer_in_parts(run, deepspeed):
    """By its engine's public counts."""
    ended = run(
        """
        import types

        class DeepSpeedEngine:
            def __init__(self, optimizer):
                self.optimizer, self.calls, self.global_steps, self.skipped_steps = optimizer, 0, 0, 0
            def step(self):
                self.calls += 1
                if self.calls % 2:  # gradients are accumulated
                    return
                for _ in range(3):
                    self.optimizer.step()
                self.global_steps += 1
                self.skipped_steps += self.global_steps == 5

        sys.modules["deepspeed"] = types.SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine)
        engine = DeepSpeedEngine(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(16):
            gradients()
            engine.step()
        """
    )
    assert ended.result["updates"] == {"attempted": 8, "applied": 7}, ended.err
    assert [row["skipped"] for row in ended.steps] == [number == 5 for number in range(1, 9)]
    assert ended.result["throughput"]["counted"] == "DeepSpeed's engine"


@pytest.mark.parametrize("names", ["DeepSpeedEngine=type('Engine', (), {'step': print})", ""])
def test_where_deepspeed_is_only_imported_optimizers_are_counted(run, deepspeed, names):
    ended = run(f"import types\nsys.modules['deepspeed'] = types.SimpleNamespace({names})\n{loop(12)}")
    assert (ended.result["updates"]["attempted"], ended.result["throughput"]["counted"]) == (12, "SGD"), ended.err


REPLAYED = f"""{loop(3)}
torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
optimizer.step()
"""
LOG = "from amp_launcher import job\nfor number in range(4, 30): job.log(number, loss=1.0, samples=8)\n"


@pytest.fixture
def graph(monkeypatch):
    """Captured by a stand-in for a GPU: a step that is captured calls its hook once, and its replays call none."""
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: False)
    return REPLAYED


def test_steps_of_a_replayed_cuda_graph_are_not_counted(run, graph):
    ended = run(graph)
    assert (ended.result["steps"], ended.result["throughput"]["mean"]) == (None, None), ended.err
    assert "steps/s not known: its optimizer steps are part of a CUDA graph" in ended.out


def test_logged_steps_of_a_replayed_cuda_graph_are_counted(run, graph):
    throughput = run(graph + LOG).result["throughput"]
    assert (throughput["unit"], throughput["counted"]) == ("samples/s", "job.log")
