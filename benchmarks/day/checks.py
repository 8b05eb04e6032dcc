"""What the parts of the day are made of: the day itself, a check, a part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amp_launcher.metrics import finite
from benchmarks.day import processes

ROOT = Path(__file__).parents[2]
LATE = 124
"""Exit code of a command that took too long."""


def write(path: Path, document: dict[str, Any]) -> None:
    """Write aside and rename over the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.aside")
    aside.write_text(json.dumps(finite(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


class LeftOut(Exception):
    """A part that this machine can't have; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """Where and how the parts run."""

    device: str
    tiny: bool
    """A rehearsal: sizes for any machine."""
    thorough: bool
    folder: Path
    """What a user can send back."""
    home: Path
    """The runs of the day, deleted at its end."""

    def python(self, *words: str, seconds: float = 300, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments; its own exit code, 124 where it took longer, when it ends with all that it
        started."""
        environment = {**os.environ, "XDG_STATE_HOME": str(self.home / "state"), **environ}
        return processes.run([sys.executable, *words], seconds=seconds, cwd=ROOT, env=environment)

    def launcher(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher; the run root stands before the arguments of a script."""
        own = words.index("--") if "--" in words else len(words)
        root = f"run_root={self.home / 'runs'}"
        done = self.python("-m", "launcher", *words[:own], root, *words[own:], **environ)
        if done.returncode == LATE:
            processes.end(self.home)  # its run has a session of its own
        return done

    def result(self, name: str) -> dict[str, Any]:
        """result.json of the run of that name; empty without one."""
        for plan in sorted((self.home / "runs").glob("*/plan.json"), reverse=True):
            path = plan.with_name("result.json")
            if json.loads(plan.read_text())["name"] == name and path.exists():
                values: dict[str, Any] = json.loads(path.read_text())
                return values
        return {}

    def folder_of(self, run: str) -> Path:
        return self.home / "runs" / run

    def one_gpu(self) -> list[str]:
        return ["gpus=1"] if self.device == "cuda" else ["device=cpu"]

    def why(self, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        """The last line of what a command that failed printed, but for the launcher's notes, without the names of
        folders and GPUs: what leaves the machine names neither. Empty of one that ended well."""
        printed = f"{done.stdout}\n{done.stderr}".splitlines()
        lines = [line for line in printed if line.strip() and not line.startswith("note: ")]
        return {"why": self.scrubbed(lines[-1].strip())} if done.returncode and lines else {}

    def scrubbed(self, text: str) -> str:
        """A text without the names of folders and GPUs."""
        for place, name in ((self.home, "RUNS"), (ROOT, "HERE"), (Path.home(), "HOME")):
            text = text.replace(str(place), name)
        return re.sub(r"(?:GPU|MIG)-[0-9a-f-]{8,}", "a GPU", text)[:400]

    def seen(self, name: str) -> dict[str, str | None]:
        """The verdict of the run of that name and its reason; None without one."""
        found = self.result(name).get("observed") or {}
        reason = found.get("why")
        return {"verdict": found.get("verdict"), "reason": reason and self.scrubbed(reason)}


@dataclass(kw_only=True, slots=True)
class Check:
    """One thing that holds or doesn't, whatever a verdict says of it."""

    name: str
    passed: bool | None
    """None where it was left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """Their state just after it (`benchmarks.day.machine.state`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    letter: str
    about: str
    seconds: float
    """A generous estimate on a large GPU."""
    run: Callable[[Day], Iterator[Check]]


def first_other(one: list[str], other: list[str]) -> int | None:
    """Where two lists differ first; where one is longer, its first place beyond the other."""
    pairs = list(zip(one, other, strict=False))
    return next((number for number, (left, right) in enumerate(pairs) if left != right), len(pairs))
