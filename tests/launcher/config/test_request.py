"""Requests that can't be understood: what is said of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.config.paths import conf_folder
from recipes.typed import plain
from tests.launcher.hosts import LAPTOP

CHECKOUT = str(conf_folder().parent)


def launch(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": CHECKOUT, **environment},
    )


def test_a_verb_that_is_not_the_first_word_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["amp=o2", "plan"]) == 2
    assert "a verb is the first word: python -m launcher plan" in capsys.readouterr().err


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    done = launch("plan", os.fsdecode(b"run_root=/tmp/\xff"), cwd=tmp_path, HOME=str(tmp_path))
    assert (done.returncode, "not UTF-8 text" in done.stderr) == (2, True), done.stderr


def test_a_folder_whose_name_breaks_a_line_can_hold_no_runs(tmp_path: Path) -> None:
    odd = tmp_path / "a\nb"
    odd.mkdir()
    done = launch("plan", "run_root=runs", cwd=odd, HOME=str(tmp_path))
    assert (done.returncode, "control character" in done.stderr) == (2, True), done.stderr


def test_recorded_facts_that_lack_what_is_asked_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(plain(LAPTOP)))
    for words, what in ((["cluster=slurm"], "Slurm"), (["container=docker", "image=x"], "containers")):
        assert main(["plan", "--facts", str(recorded), *words]) == 2
        assert f"holds nothing about {what}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["amp", "o2"], "amp is a key and needs a value: amp=..."),
        (["plan", "amp"], "amp is a key and needs a value: amp=..."),
        (["--amp=o2"], "a key has no dashes: amp=o2"),
        (["amp=o2", "--dry-run"], "`plan` shows what would be started"),
        (["train.py", "amp=o1"], "script=train.py: there is no such file"),
        (["plan", "script=train.py"], "say recipe=script"),
        (["plan", "recipe=script", "--lr", "3"], "arguments of the script go after --"),
    ],
)
def test_words_as_other_programs_want_them_are_answered_with_ours(words, says, capsys) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("time=3", "cluster.time"),
        ("lr=0.1", "train.lr"),
        ("dtype=float16", "amp.dtype"),
        ("every=5", "checkpoint.every or telemetry.every"),
        ("bach=3", "batch"),
    ],
)
def test_a_key_without_its_group_is_recognised(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", word]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m launcher run --help >&-'], capture_output=True, text=True, cwd=CHECKOUT
    )
    assert (done.returncode, done.stderr) == (0, "")
