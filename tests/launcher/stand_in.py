"""A stand-in for the trainer's Python, at the process boundary: it dumps what it was given and does what it is told."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from launcher.code import code_store
from launcher.config import job_environment
from launcher.containers import variables
from launcher.executors import execute
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from tests.launcher.hosts import LAPTOP, spec_of

# Dumps what it was given, does what BEHAVIOUR says, and leaves a result of its attempt as a trainer does.
PROGRAM = """#!{python}
import json, os, sys, time
with open(os.environ["DUMP"], "w") as stream:
    json.dump({{"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}}, stream)
print("to stdout"); print("to stderr", file=sys.stderr)
exec(os.environ.get("BEHAVIOUR", ""))
if sys.argv[-1].startswith("run="):
    path = sys.argv[-1][len("run="):] + "/result.json"
    result = json.load(open(path)) if os.path.exists(path) else {{}}
    with open(path, "w") as stream:
        json.dump({{**result, "attempts": int(os.environ["LAUNCHER_ATTEMPT"])}}, stream)
"""


def make_program(folder: Path) -> Path:
    """The program, as an executable that can be named where a Python is."""
    path = folder / "python"
    folder.mkdir(parents=True)
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o700)
    return path


def lay(tmp_path: Path, program: Path, *words: str, **changes: Any) -> tuple[Plan, Path]:
    """A prepared run folder whose trainer is the program."""
    root = tmp_path / "runs"
    facts = dataclasses.replace(LAPTOP, run_root=str(root), python=str(program))
    plan = resolve(spec_of(*words), facts)
    plan = dataclasses.replace(
        plan, env={**plan.env, "DUMP": str(tmp_path / "dump"), **changes.pop("env", {})}, **changes
    )
    root.mkdir(parents=True, exist_ok=True)
    code_store.store(root / ".code", plan.code, {})
    return plan, execute.prepare(plan)


def every_word(*folders: Path) -> dict[str, str]:
    """A value for each word of these runs' scripts that a user may give to a variable: among them the names of all
    variables and functions of the scripts."""
    texts = [(folder / name).read_text() for folder in folders for name in ("run.sh", "supervise.sh")]
    earlier = "RUN CODE WHO RESULT ENGINE QUEUE SHARED attempt logs code started before host boot gpus plan_file"
    kept = (
        "DUMP",
        *variables.SHELL,
        *variables.DEVICES,
        *variables.RENDEZVOUS,
        *job_environment.STANDARD,
        "PATH",
        "PYTHONPATH",
    )
    return {
        name: f"my {name}"
        for name in sorted({*re.findall(r"\b[A-Za-z_]\w*", "\n".join([earlier, *texts]))})
        if name not in kept and not name.startswith((*variables.JOB_PREFIXES, *variables.RUNTIME_PREFIXES, "PYTHON"))
    }
