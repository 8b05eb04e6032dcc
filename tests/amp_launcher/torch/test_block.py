"""A user's script in torch that does not end with its block of a comparison."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from amp_launcher.around import block
from amp_launcher.around import wrap as script
from amp_launcher.torch.wrapper import TorchWrapper
from tests.amp_launcher.forking import Forked, environment

ENDLESS = """
import sys, threading, time
import torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    net(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
"""
CATCHES = "while True:\n    try: step()\n    except BaseException: time.sleep(0.05)\n"
WAITS = "threading.Thread(target=time.sleep, args=(600,)).start()\nwhile True: step()\n"
FAILS = "try:\n    while True: step()\nfinally: raise ValueError('cleaning up')\n"


def start(run: Path) -> None:
    block.GRACE = 1.0
    sys.exit(script.main("torch", [f"run={run}"], TorchWrapper))


@pytest.mark.parametrize(
    ("ending", "message"),
    [(CATCHES, "it did not end within 1 s of the end of its block"), (WAITS, ""), (FAILS, "")],
    ids=["catches everything", "waits for a thread", "fails at its end"],
)
def test_a_script_that_does_not_end_with_its_block_is_ended(tmp_path, ending, message):
    file, run = tmp_path / "train.py", tmp_path / "run"
    file.write_text(ENDLESS + ending)
    (run / "attempts/1").mkdir(parents=True)
    (run / "block").write_text("0 1\n")
    asked = {"file": str(file), "workdir": str(tmp_path), "arguments": [], "in_image": False, "block": 8}
    (run / "plan.json").write_text(
        json.dumps({"schema": 2, "settings": {"recipe": "script", "device": "cpu"}, "script": asked})
    )
    done = Forked(start, (run,), environ=environment(LAUNCHER_ATTEMPT="1"), cwd=tmp_path).complete()
    assert done.returncode == 0, done.stdout + done.stderr
    assert message in done.stderr
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["steps"], result["observed"]["verdict"]) == ("done", 8, "proved")
