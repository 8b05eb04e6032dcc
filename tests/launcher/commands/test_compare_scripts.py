"""`compare` of a user's own script, for real: blocks that start it afresh and end it after so many steps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.runs import selection, store

from ..run_folders import command, launcher, until

TRAIN = """
import os, sys
import torch
assert not os.path.exists("checkpoint.pt"), "a block went on with the files of another"
torch.save({}, "checkpoint.pt")
torch.manual_seed(0)
net = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn(16, 32)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(inputs).pow(2).mean().backward()
    optimizer.step()
"""
WORDS = ["amp=o0,o1", "compare.steps=8", "compare.cool_down=0", "telemetry.every=0", "gpus=0"]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(folder: Path, script: str, *words: str, passed: tuple[str, ...] = ()):
    """The finished command, and the run's folder."""
    (folder / "train.py").write_text(script)
    told = [str(folder / "train.py"), f"run_root={folder / 'runs'}", *words, "--", *passed]
    done = launcher("compare", *told, state_home=folder / "state", seconds=300)
    (name,) = selection.run_names(str(folder / "runs"))
    return done, folder / "runs" / name


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return compare(tmp_path_factory.mktemp("scripts"), TRAIN, *WORDS, "compare.rounds=2", passed=("1000000",))


def test_each_block_starts_the_script_afresh_and_ends_it_after_its_steps(measured):
    done, folder = measured
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "blocks").read_text().split("\n")[:4] == ["00 0", "01 0", "01 0", "00 0"]
    for arm in ("00", "01"):
        rows = lines(folder / "arms" / arm / "metrics.jsonl")
        assert [row["step"] for row in rows if "event" not in row] == list(range(1, 17))
        assert [(row["attempt"], row["resumed_from"]) for row in rows if row.get("event") == "start"] == [
            (1, None),
            (2, 8),
        ]
        assert {each.name for each in (folder / "arms" / arm / "work").iterdir()} == {"1", "2"}


def test_the_verdict_compares_step_rates_and_names_uncontrolled_differences(measured):
    done, folder = measured
    assert f"{folder.name}  compare-train (amp=o0) (amp=o1)" in done.stdout
    assert re.search(r"amp=o1 \(autocast_around in torch\): [\d.]+ times the step rate over 2 rounds", done.stdout)
    assert "Seed and order of the data are the script's own, and may differ from block to block." in done.stdout
    header, control, other = done.stdout[done.stdout.index("\narm ") :].splitlines()[1:4]
    assert "steps/s" in header and control.split()[-2:] == other.split()[-2:] == ["proved", "done"]
    first, second = store.read_json(folder / "result.json")["comparison"]["arms"]
    assert first["samples_per_second"] is None and first["steps_per_second"] > 0
    assert all(rate > 0 for rate in second["by_round"]) and second["ratio"]["rounds"] == 2


def test_ls_and_report_show_the_unit(measured):
    _, folder = measured
    told = launcher("ls", folder.name, f"run_root={folder.parent}", state_home=folder.parents[1] / "state").stdout
    assert re.search(r"amp=o1  done, [\d.]+ steps/s$", told, re.MULTILINE)
    page = folder.parents[1] / "page.html"
    launcher(
        "report", folder.name, f"run_root={folder.parent}", f"--html={page}", state_home=folder.parents[1] / "state"
    )
    assert re.search(r"With its start, the last block took \d+s of amp=o0, \d+s of amp=o1", page.read_text())


@pytest.mark.parametrize(
    ("steps", "code", "said"),
    [
        ("6", 0, "times the step rate over 1 round"),
        ("1", 1, "nothing can be compared: the script ended before a step after the warm-up was timed"),
    ],
)
def test_a_script_that_ends_before_its_block_counts_if_a_step_was_timed(tmp_path, steps, code, said):
    done, _ = compare(tmp_path, TRAIN, *WORDS, "compare.rounds=1", passed=(steps,))
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


def test_arguments_after_the_dashes_reach_the_script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    told = [str(tmp_path / "train.py"), f"run_root={tmp_path / 'runs'}", *WORDS, "--plan", "--", "--plan"]
    done = launcher("compare", *told, state_home=tmp_path / "state")
    assert "train.py --plan in torch at o1" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


def test_after_an_interrupt_resume_repeats_the_incomplete_block(tmp_path):
    waits = TRAIN + "    if not os.path.exists(sys.argv[2]): import time; time.sleep(0.2)\n"
    (tmp_path / "train.py").write_text(waits)
    told = [str(tmp_path / "train.py"), f"run_root={tmp_path / 'runs'}", *WORDS]
    argv = command("compare", *told, "compare.rounds=1", "compare.steps=40", "--", "1000000", str(tmp_path / "go"))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)

    def training() -> list[Path]:
        assert process.poll() is None
        found = list((tmp_path / "runs").glob("*/arms/00/metrics.jsonl"))
        return found if found and len(lines(found[0])) >= 5 else []

    (rows_of_first,) = until(training, 120)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    folder = rows_of_first.parents[2]
    assert process.returncode == 130 and "stopped" in printed
    assert not (folder / "blocks").exists()
    (tmp_path / "go").touch()
    again = launcher("resume", folder.name, f"run_root={folder.parent}", state_home=tmp_path / "state", seconds=120)
    assert again.returncode == 0, again.stdout + again.stderr
    rows = lines(rows_of_first)
    assert [row["step"] for row in rows if "event" not in row] == list(range(1, 41))
