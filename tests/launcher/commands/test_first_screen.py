"""`python -m launcher` without a word: it starts nothing and shows the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from launcher.__main__ import main

from ..run_folders import WITHOUT_STOP, finished, make, running


def test_it_starts_nothing_and_shows_the_commands_to_go_on_with(root, capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert f"no runs in {root}" in shown and "python -m launcher train.py amp=o1" in shown
    assert not os.path.isdir(root) or os.listdir(root) == []


def test_it_has_the_newest_runs_and_each_that_has_not_ended(root, capsys):
    waiting = make(root, "20200101-000000-old-runner")
    for day in range(10, 18):
        finished(root, f"202101{day}-000000-some-run")
    assert main([]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("20")]
    assert shown == [*(f"202101{day}-000000-some-run" for day in range(17, 12, -1)), waiting.name]


def commands(capsys) -> list[str]:
    assert main([]) == 0
    return re.findall(r"^  python -m launcher (.*?)  ", capsys.readouterr().out, re.MULTILINE)


def test_without_runs_it_has_the_commands_to_begin_with(root, capsys):
    assert commands(capsys) == ["amp=o1", "train.py amp=o1", "compare amp=o0,o1", "--help"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("done", ["report brave-otter", "amp=o1", "train.py amp=o1"]),
        ("failed", ["logs brave-otter", "resume brave-otter", "amp=o1"]),
        ("stopped", ["logs brave-otter", "resume brave-otter", "amp=o1"]),
    ],
)
def test_it_goes_on_with_the_newest_run_by_how_it_ended(state, words, root, capsys):
    finished(root, state=state)
    assert commands(capsys) == [*words, "--help"]


def test_it_goes_on_with_what_runs_and_with_a_sweep_by_its_name(root, capsys):
    finished(root, "20200101-000000-old-sweep-001")
    running(root, WITHOUT_STOP)
    assert commands(capsys) == ["watch brave-otter", "report old-sweep", "cancel brave-otter", "--help"]


def test_two_runs_of_the_same_words_are_named_by_their_whole_ids(root, capsys):
    finished(root, "20200101-000000-brave-otter")
    whole = finished(root, "20210101-000000-brave-otter").name
    assert commands(capsys)[0] == f"report {whole}"


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, and only root becomes one")
def test_runs_of_others_are_listed_and_not_gone_on_with(root, capsys):
    os.chown(finished(root), 12345, -1)
    assert commands(capsys)[0] == "amp=o1"


def test_it_loads_no_framework_and_no_hydra(root):
    finished(root)
    text = "import sys; from launcher.__main__ import main; main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "hydra", "submitit", "rich", "fabric"} & set(done.stdout.splitlines()[-1].split())
