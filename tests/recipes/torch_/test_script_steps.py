"""Steps of a user's script in torch: what is counted, and what metrics.jsonl and the result say of it."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch

from recipes import job, metrics
from tests.recipes.torch_ import trainers

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
inputs = torch.randn(64, 32)
def gradients(scale=1.0):
    (net(inputs) ** 2).mean().mul(scale).backward()
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script under the wrapper: its exit code, its output, its result, its rows without events."""

    def start(text, *words, head=HEAD, ranks=1, attempt=1):
        file = tmp_path / "train.py"
        file.write_text(head + textwrap.dedent(text))
        folder = tmp_path / "run"
        words = words or ("amp=o0",)
        words = [*words, f"script={file}", f"run={folder}", f"workdir={tmp_path}", "device=cpu", "require_proof=false"]
        (folder / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
        done = trainers.run(words, ranks, trainers.SCRIPT, LAUNCHER_ATTEMPT=str(attempt))
        found = folder / "result.json"
        rows = list(metrics.read(folder / "metrics.jsonl"))
        result = json.loads(found.read_text()) if found.exists() else {}
        return done.returncode, done.stdout + done.stderr, result, rows

    return start


def steps(rows):
    return [row for row in rows if "event" not in row]


def test_each_step_has_a_row_with_its_time_and_the_result_a_rate(run):
    code, printed, result, rows = run(
        """
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(60):
            optimizer.zero_grad()
            gradients()
            optimizer.step()
        """
    )
    assert code == 0, printed
    assert rows[0]["event"] == "start" and rows[0]["total_steps"] is None
    counted = steps(rows)
    assert [row["step"] for row in counted] == list(range(1, 61))
    assert counted[0]["seconds"] is None and all(row["seconds"] > 0 for row in counted[1:])
    assert not any(row["timed"] for row in counted[:10]) and counted[-1]["timed"]
    throughput = result["throughput"]
    assert (throughput["unit"], throughput["counted"]) == ("steps/s", "AdamW")
    assert throughput["p10"] <= throughput["median"] <= throughput["p90"]
    assert (result["steps"], result["updates"]) == (60, {"attempted": 60, "applied": 60})
    assert f"60 steps of AdamW: {throughput['mean']:.4g} steps/s" in printed


def test_a_short_script_has_a_short_warm_up(run):
    _, _, result, rows = run(
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(20):
            gradients()
            optimizer.step()
        """
    )
    timed = [row["step"] for row in steps(rows) if row["timed"]]
    assert timed and min(timed) == 5
    assert result["throughput"]["steps"] == len(timed)


SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
for step in range(6):
    optimizer.zero_grad()
    scaler.scale(torch.tensor(1.0))
    gradients(float("inf") if step == 2 else 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("optimizer", ["SGD(net.parameters(), lr=1e-4)", "Adam(net.parameters(), fused=True)"])
def test_a_step_that_gradscaler_skips_is_attempted_and_not_applied(run, optimizer):
    """For SGD no hook runs; a fused Adam is called and skips it itself."""
    _, printed, result, rows = run(f"optimizer = torch.optim.{optimizer}\n{SCALED}")
    assert result["updates"] == {"attempted": 6, "applied": 5}, printed
    assert [row["skipped"] for row in steps(rows)] == [False, False, True, False, False, False]
    assert [row["loss_scale"] for row in steps(rows)] == [256.0, 256.0, 256.0, 128.0, 128.0, 128.0]
    assert result["loss_scale"] == {"final": 128.0, "skipped_steps": 1}


def test_of_two_optimizers_the_first_is_counted_and_named(run):
    _, printed, result, rows = run(
        """
        critic = nn.Linear(32, 1)
        first = torch.optim.SGD(critic.parameters(), lr=0.1)
        second = torch.optim.Adam(net.parameters())
        for step in range(12):
            for _ in range(2):
                critic(inputs).mean().backward()
                first.step()
            gradients()
            second.step()
        """
    )
    assert (result["steps"], len(steps(rows))) == (24, 24), printed
    assert result["throughput"]["counted"] == "SGD, the first of 2 optimizers"


def test_an_optimizer_for_each_parameter_counts_once_a_step(run):
    _, printed, result, _ = run(
        """
        optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in net.parameters()}
        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        for each in net.parameters():
            each.register_post_accumulate_grad_hook(step)
        for _ in range(15):
            gradients()
        """
    )
    assert result["steps"] == 15, printed
    assert result["throughput"]["counted"] == "SGD, the first of 4 optimizers"


def test_lbfgs_takes_one_step_for_several_evaluations(run):
    _, printed, result, _ = run(
        """
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
        def closure():
            optimizer.zero_grad()
            loss = (net(inputs) ** 2).mean()
            loss.backward()
            return loss
        for step in range(7):
            optimizer.step(closure)
        """
    )
    assert result["steps"] == 7, printed


@pytest.mark.parametrize("kind", ["SGD(net.parameters(), lr=0.1, foreach=True)", "AdamW(net.parameters(), fused=True)"])
def test_steps_in_a_thread_are_counted(run, kind):
    _, printed, result, _ = run(
        f"""
        import threading
        optimizer = torch.optim.{kind}
        def train():
            for step in range(8):
                gradients()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """
    )
    assert result["steps"] == 8, printed


@pytest.mark.parametrize(
    "compiled",
    [
        "take = torch.compile(optimizer.step, backend='aot_eager')",
        "@torch.compile(backend='aot_eager')\n        def take():\n            optimizer.step()",
        "net = torch.compile(net, backend='aot_eager')\n        take = optimizer.step",
    ],
)
def test_compiled_steps_are_counted_and_compiled_once(run, compiled):
    _, printed, result, _ = run(
        f"""
        from torch._dynamo.utils import counters
        optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01))
        {compiled}
        for step in range(12):
            optimizer.zero_grad()
            gradients()
            take()
        print("frames", counters["stats"]["unique_graphs"])
        """
    )
    assert result["steps"] == 12, printed
    assert int(printed.split("frames ")[1].split()[0]) <= 4


def test_a_script_without_steps_has_no_rate_but_a_reason(run):
    _, printed, result, rows = run("print(net(inputs).sum())")
    assert (result["steps"], steps(rows)) == (0, [])
    assert (result["throughput"]["mean"], result["throughput"]["why"]) == (None, "no optimizer step was seen")
    assert "steps/s not known: no optimizer step was seen" in printed


ENDS = """
import os, signal
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(70):
    gradients()
    optimizer.step()
"""


@pytest.mark.parametrize("end", ["raise ValueError('no')", "raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_no_row_is_lost_when_a_script_ends_early(run, end):
    code, printed, result, rows = run(f"{ENDS}{end}\n")
    assert code != 0
    assert [row["step"] for row in steps(rows)] == list(range(1, 71)), printed
    assert (result["status"], result["steps"]) == ("failed", 70)
    assert result["throughput"]["mean"] > 0


def test_a_second_attempt_continues_the_step_numbers(run):
    run(ENDS)
    _, _, result, rows = run(ENDS, attempt=2)
    assert [row["step"] for row in steps(rows)] == list(range(1, 141))
    starts = [(row["attempt"], row["resumed_from"]) for row in rows if row.get("event") == "start"]
    assert starts == [(1, None), (2, 70)]
    assert not any(row["timed"] for row in steps(rows)[70:80])
    assert (result["attempts"], result["steps"]) == (2, 140)


def test_folds_with_an_optimizer_each_are_one_count(run):
    _, printed, result, _ = run(
        """
        def fold():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(10):
                gradients()
                optimizer.step()
        for _ in range(3):
            fold()
        """
    )
    assert (result["steps"], result["throughput"]["counted"]) == (30, "SGD"), printed


def test_a_process_that_the_script_forks_writes_no_rows(run):
    _, printed, result, rows = run(
        """
        import os
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        gradients()
        optimizer.step()
        child = os.fork()
        for step in range(5):
            optimizer.step()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert (result["steps"], len(steps(rows))) == (6, 6), printed


def test_of_two_ranks_the_first_writes_the_rows(run):
    code, printed, result, rows = run(
        """
        import torch.distributed as distributed
        distributed.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(30):
            gradients()
            optimizer.step()
        distributed.destroy_process_group()
        """,
        ranks=2,
    )
    assert code == 0, printed
    assert [row["step"] for row in steps(rows)] == list(range(1, 31))
    assert (result["world_size"], result["steps"], result["throughput"]["unit"]) == (2, 30, "steps/s")


def test_a_script_logs_its_loss_and_samples(run):
    code, printed, result, rows = run(
        """
        from recipes import job
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(30):
            optimizer.zero_grad()
            loss = (net(inputs) ** 2).mean()
            loss.backward()
            optimizer.step()
            job.log(step, loss=loss, samples=len(inputs))
        """
    )
    assert code == 0, printed
    assert [row["step"] for row in steps(rows)] == list(range(30))
    assert result["loss"] == {"first": steps(rows)[0]["loss"], "last": steps(rows)[-1]["loss"]}
    assert (result["throughput"]["unit"], result["throughput"]["counted"]) == ("samples/s", "SGD")


def test_a_loss_of_several_elements_is_refused():
    with pytest.raises(TypeError, match=r"job\.log: loss=.* is not a number"):
        job.log(1, loss=torch.zeros(2))


def test_a_loss_that_becomes_nan_ends_a_script_as_it_ends_a_recipe(run):
    code, printed, result, rows = run(
        """
        from recipes import job
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(1, 30):
            gradients()
            optimizer.step()
            job.log(step, loss=float("nan") if step == 7 else 1.0)
        """
    )
    assert (code, result["status"]) == (1, "failed")
    assert result["reason"] == "the loss is nan since step 7; try a lower learning rate"
    assert "script: the loss is nan since step 7" in printed and "Traceback" not in printed
    assert len(steps(rows)) == 7


def test_deepspeeds_engine_counts_where_it_steps_an_optimizer_in_parts(run):
    """A stand-in for DeepSpeed, which is not installed: its engine's public counts."""
    _, printed, result, rows = run(
        """
        import sys, types

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
    assert result["updates"] == {"attempted": 8, "applied": 7}, printed
    assert [row["skipped"] for row in steps(rows)] == [number == 5 for number in range(1, 9)]
    assert result["throughput"]["counted"] == "DeepSpeed's engine"


@pytest.mark.parametrize("module", ["types.SimpleNamespace(DeepSpeedEngine=Engine)", "types.SimpleNamespace()"])
def test_where_deepspeed_is_only_imported_optimizers_are_counted(run, module):
    _, printed, result, _ = run(
        f"""
        import sys, types

        class Engine:
            def step(self):
                pass

        sys.modules["deepspeed"] = {module}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(12):
            gradients()
            optimizer.step()
        """
    )
    assert (result["updates"]["attempted"], result["throughput"]["counted"]) == (12, "SGD"), printed


def test_steps_of_a_replayed_cuda_graph_are_not_counted_but_logged_steps_are(run):
    """A stand-in for a GPU: a step that is captured calls its hook once, and its replays call none."""
    text = """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        gradients()
        for _ in range(3):
            optimizer.step()
        torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
        optimizer.step()
        for number in range(4, 30):
            {replay}
    """
    _, printed, result, _ = run(text.format(replay="pass"))
    assert (result["steps"], result["throughput"]["mean"]) == (None, None), printed
    assert "steps/s not known: its optimizer steps are part of a CUDA graph" in printed
    log = "from recipes import job; job.log(number, loss=1.0, samples=8)"
    _, printed, result, _ = run(text.format(replay=log), attempt=2)
    assert (result["throughput"]["unit"], result["throughput"]["counted"]) == ("samples/s", "job.log"), printed
