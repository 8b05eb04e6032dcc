"""Steps of a user's script in torch: the count of its optimizers, in metrics.jsonl and in the result."""

from __future__ import annotations

import shutil
import textwrap

import pytest
import torch

from amp_launcher import job
from amp_launcher.torch.observe import dispatch_observer
from tests.amp_launcher.torch.scripts import HEAD, PLAIN, fork, in_process, loop
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

O0 = ("amp=o0", "require_proof=false")


@pytest.fixture
def run(run_script, tmp_path):
    """Runs the next attempt of a script, whose text follows `HEAD`, in this process."""
    start = in_process(run_script, tmp_path)
    return lambda text: start(HEAD + textwrap.dedent(text), *O0)


@pytest.fixture
def run_apart(tmp_path):
    """The same in processes of its own."""
    return lambda text, **options: fork(tmp_path, HEAD + textwrap.dedent(text), *O0, **options)


def test_each_step_has_a_row_with_its_time_and_the_result_a_rate(run):
    ended = run(loop(60, "AdamW(net.parameters())"))
    assert ended.code == 0, ended.err
    assert ended.rows[0]["event"] == "start" and ended.rows[0]["total_steps"] is None
    assert [row["step"] for row in ended.steps] == list(range(1, 61))
    assert ended.steps[0]["seconds"] is None and all(row["seconds"] > 0 for row in ended.steps[1:])
    assert [row["timed"] for row in ended.steps[:10]] == [False] * 10 and ended.steps[-1]["timed"]
    throughput = ended.result["throughput"]
    assert (throughput["unit"], throughput["counted"]) == ("steps/s", "AdamW")
    assert throughput["p10"] <= throughput["median"] <= throughput["p90"]
    assert (ended.result["steps"], ended.result["updates"]) == (60, {"attempted": 60, "applied": 60})
    assert f"60 steps of AdamW: {throughput['mean']:.4g} steps/s" in ended.out


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
    ended = run(f"optimizer = torch.optim.{optimizer}\n{SCALED}")
    assert ended.result["updates"] == {"attempted": 6, "applied": 5}, ended.err
    assert [row["skipped"] for row in ended.steps] == [False, False, True, False, False, False]
    assert [row["loss_scale"] for row in ended.steps] == [256.0, 256.0, 256.0, 128.0, 128.0, 128.0]
    assert ended.result["loss_scale"] == {"final": 128.0, "skipped_steps": 1}


TWO = """
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
ONE_FOR_EACH_PARAMETER = """
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()}
def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(15):
    gradients()
"""
LBFGS = """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = (net(inputs) ** 2).mean()
    loss.backward()
    return loss
for step in range(7):
    optimizer.step(closure)
"""
FOLDS = f"""
def fold():
{textwrap.indent(loop(10), "    ")}
for _ in range(3):
    fold()
"""
THREAD = """
import threading
def train():
{}
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def in_a_thread(optimizer):
    return THREAD.format(textwrap.indent(loop(8, optimizer), "    "))


@pytest.mark.parametrize(
    ("text", "steps", "counted"),
    [
        pytest.param(TWO, 24, "SGD, the first of 2 optimizers", id="two optimizers"),
        pytest.param(ONE_FOR_EACH_PARAMETER, 15, "SGD, the first of 4 optimizers", id="an optimizer a parameter"),
        pytest.param(LBFGS, 7, "LBFGS", id="several evaluations a step"),
        pytest.param(FOLDS, 30, "SGD", id="an optimizer a fold"),
        pytest.param(in_a_thread("SGD(net.parameters(), lr=0.1, foreach=True)"), 8, "SGD", id="in a thread"),
        pytest.param(in_a_thread("AdamW(net.parameters(), fused=True)"), 8, "AdamW", id="in a thread, fused"),
    ],
)
def test_steps_are_those_of_the_first_optimizer(run, text, steps, counted):
    ended = run(text)
    assert (ended.result["steps"], len(ended.steps)) == (steps, steps), ended.err
    assert ended.result["throughput"]["counted"] == counted


@pytest.mark.parametrize(
    ("compiled", "most"),
    [
        ("take = torch.compile(optimizer.step, backend='aot_eager')", 4),
        ("@torch.compile(backend='aot_eager')\n        def take():\n            optimizer.step()", 4),
        ("net = torch.compile(net, backend='aot_eager')\n        take = optimizer.step", 1),
    ],
)
def test_compiled_steps_are_counted_and_compiled_once(run_apart, compiled, most):
    ended = run_apart(
        f"""
        from torch._dynamo.utils import counters
        optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01))
        {compiled}
        for step in range(21):
            optimizer.zero_grad()
            gradients()
            take()
        print("frames", counters["stats"]["unique_graphs"])
        """
    )
    assert ended.result["steps"] == 21, ended.err
    assert 1 <= int(ended.out.split("frames ")[1].split()[0]) <= most


def test_a_script_without_steps_has_no_rate_but_a_reason(run_apart):
    ended = run_apart("gradients()")
    assert (ended.result["steps"], ended.steps) == (0, [])
    throughput = ended.result["throughput"]
    assert (throughput["mean"], throughput["why"]) == (None, "no optimizer step was seen")
    assert "steps/s not known: no optimizer step was seen" in ended.out


@pytest.mark.parametrize("end", ["raise ValueError('no')", "raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_no_row_is_lost_when_a_script_ends_early(run, end):
    ended = run(f"{loop(70)}{end}\n")
    assert ended.code != 0
    assert [row["step"] for row in ended.steps] == list(range(1, 71)), ended.err
    assert (ended.result["status"], ended.result["steps"]) == ("failed", 70)
    assert ended.result["throughput"]["mean"] > 0


def test_a_second_attempt_continues_the_step_numbers(run):
    run(loop(70))
    ended = run(loop(70))
    assert [row["step"] for row in ended.steps] == list(range(1, 141))
    starts = [(row["attempt"], row["resumed_from"]) for row in ended.rows if row.get("event") == "start"]
    assert starts == [(1, None), (2, 70)]
    assert not any(row["timed"] for row in ended.steps[70:80])
    assert (ended.result["attempts"], ended.result["steps"]) == (2, 140)


def test_a_process_that_the_script_forks_writes_no_rows(run_apart):
    ended = run_apart(
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
    assert (ended.result["steps"], len(ended.steps)) == (6, 6), ended.err


def test_of_two_ranks_the_first_writes_the_rows(run_apart):
    start = "import torch.distributed as distributed\ndistributed.init_process_group('gloo')\n"
    ended = run_apart(
        f"{start}net = nn.parallel.DistributedDataParallel(net)\n{loop(30)}distributed.destroy_process_group()\n",
        ranks=2,
    )
    assert ended.code == 0, ended.err
    assert [row["step"] for row in ended.steps] == list(range(1, 31))
    result = ended.result
    assert (result["world_size"], result["steps"], result["throughput"]["unit"]) == (2, 30, "steps/s")


def test_a_script_logs_its_loss_and_samples(run):
    ended = run(
        """
        from amp_launcher import job
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(30):
            optimizer.zero_grad()
            loss = (net(inputs) ** 2).mean()
            loss.backward()
            optimizer.step()
            job.log(step, loss=loss, samples=len(inputs))
        """
    )
    assert ended.code == 0, ended.err
    assert [row["step"] for row in ended.steps] == list(range(30))
    assert ended.result["loss"] == {"first": ended.steps[0]["loss"], "last": ended.steps[-1]["loss"]}
    assert (ended.result["throughput"]["unit"], ended.result["throughput"]["counted"]) == ("samples/s", "SGD")


def test_a_loss_of_several_elements_is_refused():
    with pytest.raises(TypeError, match=r"job\.log: loss=.* is not a number"):
        job.log(1, loss=torch.zeros(2))


def test_a_loss_that_becomes_nan_ends_a_script_as_it_ends_a_recipe(run):
    log = "    from amp_launcher import job; job.log(step + 1, loss=float('nan') if step == 6 else 1.0)\n"
    ended = run(f"{loop(30)}{log}")
    assert (ended.code, ended.result["status"]) == (1, "failed")
    assert ended.result["reason"] == "the loss is nan since step 7; try a lower learning rate"
    assert "script: the loss is nan since step 7" in ended.err and "Traceback" not in ended.err
    assert len(ended.steps) == 7


def test_a_script_that_compiles_is_not_observed_where_torch_would_break_it(run_script, tmp_path, monkeypatch):
    """As torch 2.4 does: there a dispatch mode reaches into the compiler."""
    monkeypatch.setattr(dispatch_observer, "missing", lambda compiles: "a private name" if compiles else "")
    compiled = "net = torch.compile(net, backend='eager')\n"
    run = in_process(run_script, tmp_path)
    ended = run(PLAIN.replace("for step", compiled + "for step", 1), "amp=o1")
    assert (ended.code, ended.verdict) == (0, "unknown")
    assert "can't be observed where it compiles (it has no a private name)" in ended.err
    shutil.rmtree(tmp_path / "run")
    assert run(PLAIN, "amp=o1").verdict == "proved"
