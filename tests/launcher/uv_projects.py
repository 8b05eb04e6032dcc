"""Projects for the real uv, which need no index: a package in a folder, built by a backend that lies beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.code import uv_environment

BACKEND = """\
import os, time, zipfile
place = {place!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open(place + "/built", "a") as out:
        out.write("once\\n")
    while os.path.exists(place + "/hold"):
        time.sleep(0.05)
    name = "tinylib-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("tinylib.py", open("tinylib.py").read())
        info = "tinylib-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: tinylib\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = """\
[project]
name = "proj"
version = "0.1"
requires-python = ">=3.10"
dependencies = ["tinylib"]

[tool.uv]
cache-dir = "{place}/cache"

[tool.uv.sources]
tinylib = {{ path = "{path}" }}
"""
PACKAGE = """\
[project]
name = "tinylib"
version = "1.0"

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def command() -> list[str]:
    """uv. Skips the test where it is not installed."""
    return uv_environment.uv() or pytest.skip("needs uv: pip install uv")


def lock(folder: Path) -> None:
    subprocess.run([*command(), "lock", "--offline", "--project", str(folder)], check=True, capture_output=True)


def make(place: Path, folder: Path, path: str = "lib") -> Path:
    """A locked project in `folder`, with its package at `path` from there. In `place` are uv's cache, `built` with a
    line for each build, and `hold`, for which a build waits while it is there."""
    package = folder / path
    package.mkdir(parents=True)
    (package / "pyproject.toml").write_text(PACKAGE)
    (package / "backend.py").write_text(BACKEND.format(place=str(place)))
    (package / "tinylib.py").write_text("answer = 42\n")
    (folder / "pyproject.toml").write_text(PROJECT.format(place=place, path=path))
    (folder / "train.py").write_text("import sys, tinylib\nprint('answer', tinylib.answer, sys.executable)\n")
    lock(folder)
    return folder


def builds(place: Path) -> int:
    return len((place / "built").read_text().splitlines()) if (place / "built").exists() else 0
