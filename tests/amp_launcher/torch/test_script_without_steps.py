"""A user's script in torch that takes no optimizer step: nothing to prove, unless it may have trained unseen."""

from __future__ import annotations

import time

import pytest
import torch

from amp_launcher.torch.observe.recording import Recording
from tests.amp_launcher.torch.scripts import HEAD, fork, in_process
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

EVALUATION = "for _ in range(3):\n    net(inputs)\n"


TEXTS = [
    "print('prepared')\n",
    EVALUATION,
    f"net.eval()\nwith torch.no_grad():\n    {EVALUATION.replace(chr(10), chr(10) + '    ')}",
    f"with torch.inference_mode():\n    {EVALUATION.replace(chr(10), chr(10) + '    ')}",
    f"optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n{EVALUATION}",
    f"net = torch.compile(net, backend='eager')\n{EVALUATION}",
]


@pytest.fixture
def run(run_script, tmp_path):
    return in_process(run_script, tmp_path)


@pytest.mark.parametrize(
    ("text", "level", "required"),
    [
        (EVALUATION, "o0", "require_proof=false"),
        *((text, "o1", "require_proof=true") for text in TEXTS),
    ],
)
def test_there_is_nothing_to_prove_of_a_script_that_trains_nothing(run, text, level, required):
    ended = run(HEAD + text, f"amp={level}", required)
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.err
    assert ended.result["wall_seconds"] < time.monotonic(), "since this process started, not since the machine's start"
    observed = ended.result["observed"]
    assert (observed["verdict"], observed["why"]) == (None, "it took no optimizer step")
    assert f"amp={level} nothing to prove: it took no optimizer step" in ended.out
    assert "steps/s" not in ended.out


FUNCTION = "loss = lambda weight: ((inputs @ weight) ** 2).mean()\nweight = torch.zeros(32, 1)\n"


@pytest.mark.parametrize(
    "text",
    [
        "gradients()\n",
        "torch.autograd.grad((net(inputs) ** 2).mean(), list(net.parameters()))\n",
        "import threading\nthread = threading.Thread(target=gradients)\nthread.start(); thread.join()\n",
        f"{FUNCTION}weight = weight - 0.1 * torch.func.grad(loss)(weight)\n",
        f"{FUNCTION}weight = torch.compile(lambda it: it - 0.1 * torch.func.grad(loss)(it), backend='eager')(weight)\n",
        "import os\nif not os.fork():\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n    gradients()\n"
        "    optimizer.step()\n    os._exit(0)\nos.wait()\n",
    ],
)
def test_a_script_that_may_have_trained_unseen_is_unknown(run, text):
    ended = run(HEAD + text, "amp=o1", "require_proof=true")
    assert (ended.result["status"], ended.result["observed"]["verdict"]) == ("failed", "unknown"), ended.out
    assert "require_proof=false lets that pass" in ended.err


def test_a_later_attempt_without_a_step_is_unknown_where_no_record_says_what_an_earlier_one_trained(run):
    ended = run(HEAD + TEXTS[0], "amp=o1", environ={"LAUNCHER_ATTEMPT": "2"})
    assert (ended.code, ended.verdict) == (0, "unknown"), ended.out


@pytest.mark.parametrize("text", ["", "gradients()\n"])
def test_torch_computes_gradients_afterwards_as_before(run, text):
    own = torch.autograd.graph._engine_run_backward
    assert run(HEAD + text, "amp=o1", "require_proof=false").code == 0
    assert torch.autograd.graph._engine_run_backward is own is torch.autograd._engine_run_backward
    with Recording() as recording:
        assert not recording.missing, "no profiler is left at work"


@pytest.mark.parametrize(("text", "verdict"), [(EVALUATION, None), ("if RANK:\n    gradients()\n", "unknown")])
def test_of_several_ranks_each_has_to_have_trained_nothing(tmp_path, text, verdict):
    ended = fork(tmp_path, "import os\nRANK = int(os.environ['RANK'])\n" + HEAD + text, "amp=o1", ranks=2)
    assert ended.code == 0, ended.err
    assert ended.result["observed"]["verdict"] == verdict
