"""Frameworks of a Python, by the builds that are installed in it."""

from __future__ import annotations

import os
import sys

import pytest

from launcher.config import job_environment
from launcher.probe import pythons


@pytest.mark.parametrize(
    ("distribution", "version"), [("paddlepaddle", "3.3.1+cpu"), ("paddlepaddle_gpu", "3.3.1"), ("other", "unknown")]
)
@pytest.mark.parametrize("which", ["this Python", "another Python"])
def test_the_build_of_paddle_is_read_from_its_distribution(which, distribution, version, tmp_path, monkeypatch):
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").touch()
    info = tmp_path / f"{distribution}-3.3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: 3.3.1\n")
    if which == "this Python":
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "paddle", raising=False)  # of another test, which would be found instead
        _, packages = pythons.look_into(sys.executable, job_environment.search_path(os.environ, os.getcwd()))
    else:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        _, packages = pythons.look_into(str(python), {})
    assert packages["paddle"] == version


def test_a_job_without_the_shells_search_path_lacks_what_only_that_has(tmp_path, monkeypatch):
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").touch()
    (tmp_path / "paddlepaddle-99.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    found = pythons.look_into(sys.executable, {"PYTHONPATH": str(tmp_path)})
    assert found[1]["paddle"] == "99+cpu"
    assert pythons.look_into(sys.executable, {})[1].get("paddle") != "99+cpu"

    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))  # which has no framework: no other process has to be asked
    monkeypatch.setattr(pythons.subprocess, "run", None)
    assert pythons.look_into(sys.executable, {}) == found
