"""`compare` of a user's own script, for real: blocks that start it afresh and end it after so many steps.

One comparison for all claims: its first block is interrupted and repeated, its last one ends early by itself.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from types import SimpleNamespace

import pytest

from launcher.__main__ import main
from launcher.runs import store

from .. import warm
from ..run_folders import called, command, lines, until

STEPS, EARLY = 12, 6
# The control's third attempt is its second block.
TRAIN = f"""
import os, sys, time
import torch
assert not os.path.exists("checkpoint.pt"), "a block went on with the files of another"
torch.save({{}}, "checkpoint.pt")
torch.manual_seed(0)
net = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn(16, 32)
for step in range({EARLY} if os.environ["LAUNCHER_ATTEMPT"] == "3" else 1_000_000):
    optimizer.zero_grad()
    net(inputs).pow(2).mean().backward()
    optimizer.step()
    if step > 3 and not os.path.exists(sys.argv[1]): time.sleep(1)
"""
WORDS = ["amp=o0,o1", "compare.cool_down=0", "telemetry.every=0", "gpus=0"]


def steps_of(arm):
    return [row["step"] for row in lines(arm / "metrics.jsonl") if "event" not in row]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The interrupted command and what it had measured, and the one that resumed it to its end."""
    folder, root = tmp_path_factory.mktemp("scripts"), tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(TRAIN)
    words = [str(folder / "train.py"), f"run_root={root}", *WORDS, "compare.rounds=2", f"compare.steps={STEPS}"]
    words += [f"python={warm.python()}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    environment.pop("PYTEST_CURRENT_TEST", None)
    process = subprocess.Popen(
        command("compare", *words, "--", str(folder / "go")), env=environment, stdout=subprocess.PIPE, text=True
    )

    def training():
        assert process.poll() is None
        files = list(root.glob("*/arms/00/metrics.jsonl"))
        return files if files and len(lines(files[0])) >= 5 else []

    (rows_of_first,) = until(training, 120)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate()
    run = rows_of_first.parents[2]
    interrupted = SimpleNamespace(code=process.returncode, printed=printed, blocks=(run / "blocks").exists())
    (folder / "go").touch()
    again = called("resume", run.name, f"run_root={root}", XDG_STATE_HOME=environment["XDG_STATE_HOME"])
    return interrupted, again, run


def test_after_an_interrupt_resume_repeats_the_incomplete_block(measured):
    interrupted, again, run = measured
    assert (interrupted.code, "stopped" in interrupted.printed, interrupted.blocks) == (130, True, False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (run / "blocks").read_text().split("\n")[:4] == ["00 0", "01 0", "01 0", "00 0"]


def test_each_block_starts_the_script_afresh_and_ends_it_after_its_steps(measured):
    *_, run = measured
    control, other = run / "arms/00", run / "arms/01"
    assert steps_of(control) == list(range(1, STEPS + EARLY + 1))
    assert steps_of(other) == list(range(1, 2 * STEPS + 1))
    starts = [row for row in lines(other / "metrics.jsonl") if row.get("event") == "start"]
    assert [(row["attempt"], row["resumed_from"]) for row in starts] == [(1, None), (2, STEPS)]
    assert {folder.name for folder in (other / "work").iterdir()} == {"1", "2"}


def test_the_verdict_compares_step_rates_and_names_uncontrolled_differences(measured):
    _, done, run = measured
    assert f"{run.name}  compare-train (amp=o0) (amp=o1)" in done.stdout
    assert re.search(r"amp=o1 .* [\d.]+ times over 2 rounds, too few to tell", done.stdout)
    assert "Seed and order of the data are the script's own, and may differ from block to block." in done.stdout
    header, control, other = done.stdout[done.stdout.index("\narm ") :].splitlines()[1:4]
    assert "steps/s" in header and control.split()[-2:] == other.split()[-2:] == ["proved", "done"]
    first, second = store.read_json(run / "result.json")["comparison"]["arms"]
    assert first["samples_per_second"] is None and first["steps_per_second"] > 0
    assert all(rate > 0 for rate in second["by_round"]) and second["ratio"]["rounds"] == 2


def test_ls_and_report_show_the_unit_and_the_block_that_ended_early(measured, tmp_path, capsys):
    *_, run = measured
    assert main(["ls", run.name, f"run_root={run.parent}"]) == 0
    assert re.search(r"amp=o1  done, [\d.]+ steps/s$", capsys.readouterr().out, re.MULTILINE)
    page = tmp_path / "page.html"
    assert main(["report", run.name, f"run_root={run.parent}", f"--html={page}"]) == 0
    assert re.search(r"With its start, the last block took \d+s of amp=o0, \d+s of amp=o1", page.read_text())
    assert f"Of amp=o0, 1 ended by themselves before that, after {EARLY} steps or more." in page.read_text()


def test_arguments_after_the_dashes_reach_the_script(tmp_path, capsys):
    (tmp_path / "train.py").write_text(TRAIN)
    words = [str(tmp_path / "train.py"), f"run_root={tmp_path / 'runs'}", *WORDS, "--plan", "--", "--plan"]
    assert main(["compare", *words]) == 0
    assert "train.py --plan in torch at o1" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
