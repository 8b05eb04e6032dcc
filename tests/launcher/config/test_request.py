"""Requests at the edges: recorded facts that lack what is asked for, and a terminal that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from launcher.config.paths import conf_folder
from recipes.typed import plain
from tests.launcher.config.conftest import Refusal
from tests.launcher.hosts import LAPTOP


def test_recorded_facts_that_lack_what_is_asked_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(plain(LAPTOP)))
    for words, what in ((["cluster=slurm"], "Slurm"), (["container=docker", "image=x"], "containers")):
        assert f"holds nothing about {what}" in refusal("plan", "--facts", str(recorded), *words)


def test_a_closed_stdout_is_no_error() -> None:
    argv = ["bash", "-c", f'"{sys.executable}" -m launcher run --help >&-']
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=conf_folder().parent)
    assert (ended.returncode, ended.stderr) == (0, "")
