"""Raises in the functions of an observer, one after the other, while a script runs under it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from amp_launcher.around import script_attempt
from amp_launcher.around import wrap as script
from amp_launcher.around.script_attempt import ScriptAttempt
from amp_launcher.precision.observation import Guard
from tests.amp_launcher import forking
from tests.amp_launcher.wrapped_scripts import WRAPPERS

ROOT = Path(script.__file__).parents[1]
BELOW = f"{ROOT}/"
SHARED = ("around/early.py", "loop/profiling.py", "around/schedule.py")
THIN = {"__torch_dispatch__", "_before_forward", "counting", "leave", "observing", "traced", "__init__"}
"""Functions that run the script's own code, all that is theirs in hooks; and what is made before the script starts."""


class Raising:
    """Notes the functions of these files that are called from other files, and raises once, in one of them."""

    def __init__(self, files: tuple[str, ...], thin: set[str], place: tuple[str, int] | None = None) -> None:
        self.places: dict[tuple[str, int], str] = {}
        """File below amp_launcher/ and first line -> name."""
        self._files = files
        self._thin = thin
        self._place = place

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if not code.co_filename.startswith(BELOW):  # as nearly all
            return
        file = code.co_filename.removeprefix(BELOW)
        called = caller is not None and caller.f_code.co_filename != code.co_filename
        if file.startswith(self._files) and code.co_name not in self._thin and called:
            place = (file, code.co_firstlineno)
            self.places[place] = code.co_name
            if place == self._place:
                raise LookupError("raised by a test")


@pytest.fixture
def faults(tmp_path, monkeypatch, capfd) -> Callable[..., list[str]]:
    """The functions in these files of a framework in which an error isn't told by the verdict, or reaches a script; and
    the hooks that no script calls. Each script has its verdict, and prints what it computed in a line that begins with
    "weights"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    begin, end, register = ScriptAttempt.run, ScriptAttempt._end, Guard.hook
    file = tmp_path / "train.py"
    registered: dict[tuple[str, int], str] = {}

    def hook(guard, function):
        if (code := getattr(function, "__code__", None)) and code.co_name != "<lambda>":
            place = code.co_filename.removeprefix(BELOW), code.co_firstlineno
            registered[place] = code.co_name
        return register(guard, function)

    monkeypatch.setattr(Guard, "hook", hook)
    monkeypatch.setattr(script_attempt, "flush_files", lambda: None)  # which looks at all objects of this process

    def printed(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("weights")]

    def run(framework, raising, number):
        monkeypatch.setattr(ScriptAttempt, "run", lambda attempt: sys.settrace(raising) or begin(attempt))
        monkeypatch.setattr(ScriptAttempt, "_end", lambda *ended, **how: sys.settrace(None) or end(*ended, **how))
        folder, before = tmp_path / number, sys.gettrace()
        wrapper = getattr(importlib.import_module(f"amp_launcher.{framework}.script"), WRAPPERS[framework])
        try:
            code = script.main(framework, ["amp=o0", "device=cpu", f"run={folder}", f"script={file}"], wrapper)
        finally:
            sys.settrace(before)
        return code, printed(capfd.readouterr().out), json.loads((folder / "result.json").read_text())["observed"]

    def find(framework, scripts, files, thin=()):
        files, thin = (*(f"{framework}/{name}" for name in files), *SHARED), {*THIN, *thin}
        called, found, alone = set(), [], {}
        for text in scripts:  # before any is this process's `__main__`, which a fork would run
            file.write_text(text)
            if framework == "paddle":  # which can't be imported after TensorFlow, as forks may have it
                plain = subprocess.run([sys.executable, file], capture_output=True, text=True)
            else:
                plain = forking.Forked(forking.run_as_main, ((str(file),), ())).complete()
            alone[text] = printed(plain.stdout)
            assert alone[text], plain.stderr
        for text, verdict in scripts.items():
            file.write_text(text)
            every = Raising(files, thin)
            code, weights, observed = run(framework, every, f"{len(called)}-")
            assert (code, weights, observed["verdict"]) == (0, alone[text], verdict), observed["why"]
            for place in every.places.keys() - called:
                called.add(place)
                try:
                    code, weights, observed = run(framework, Raising(files, thin, place), str(len(called)))
                except LookupError:
                    code, observed = None, {"verdict": "", "why": ""}
                why = f"observing it failed: LookupError: raised by a test (amp_launcher/{place[0]}:{place[1]})"
                if (code, weights, observed["verdict"]) != (0, alone[text], "unknown") or why not in observed["why"]:
                    seen = f"exit code {code}, {observed['verdict']}: {observed['why']}"
                    found.append(f"{every.places[place]} of {place}: {seen}")
        never = {
            place: name for place, name in registered.items() if place[0].startswith(files) and place not in called
        }
        return [*found, *(f"{name} of {place} is never called" for place, name in never.items())]

    return find
