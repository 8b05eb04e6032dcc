"""A user's script under its framework's wrapper, run in this process as a user's file is run."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from amp_launcher.around import wrap as script
from amp_launcher.settings import Settings
from amp_launcher.typed import plain

WRAPPERS = {"torch": "TorchWrapper", "tensorflow": "TensorFlowWrapper", "paddle": "PaddleWrapper"}


@pytest.fixture
def run_script(tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, Any, dict[str, Any]]]:
    """Runs a script: its exit code, what it printed, and its result. The run folder is `tmp_path / "run"`."""

    def run(framework, text, *words, passed=(), asked=None, environ=None):
        """`passed` are the script's arguments; `asked` is the `amp` that `Precision.from_env()` reads."""
        wrapper = getattr(importlib.import_module(f"amp_launcher.{framework}.script"), WRAPPERS[framework])
        file, folder = tmp_path / "train.py", tmp_path / "run"
        file.write_text(textwrap.dedent(text))
        folder.mkdir(exist_ok=True)
        if asked is not None:
            values = plain(Settings(recipe="script", framework=framework, device="cpu", train=None))
            plan = {"schema": 2, "settings": {**values, "train": {}, "amp": asked}}
            (tmp_path / "plan.json").write_text(json.dumps(plan))
            environ = {**(environ or {}), "LAUNCHER_SPEC": str(tmp_path / "plan.json")}
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        ours = [*words, f"script={file}", f"run={folder}", "device=cpu"]
        code = script.main(framework, [*ours, *(["--", *passed] if passed else [])], wrapper)
        result = folder / "result.json"
        return code, capfd.readouterr(), json.loads(result.read_text()) if result.exists() else {}

    return run
