"""The time to the first output of a command."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import PEERS, PYTHON, environment, launcher
from launcher.config.paths import conf_folder

ROUNDS = 25


def help(folder: Path) -> Measured:
    return _against_import(
        folder, "help", launcher("--help"), "omegaconf", "`--help` no slower than `import omegaconf`"
    )


def ls(folder: Path) -> Measured:
    return _against_import(folder, "ls", launcher("ls"), "omegaconf", "`ls` no slower than `import omegaconf`")


def completion(folder: Path) -> Measured:
    argv = launcher("-sc", "query=bash")
    return _against_import(folder, "completion", argv, "hydra", "completing a key no slower than `import hydra`")


def plan(folder: Path) -> Measured:
    words = ["amp=o2"]
    environ = environment(folder, CONF=str(conf_folder()))
    ours, theirs = "plan amp=o2", "minimal Hydra app, the same conf/ and word"
    cases = {
        ours: command(launcher("plan", *words), folder, environ),
        theirs: command([PYTHON, str(PEERS / "hydra_app.py"), *words], folder, environ),
    }
    return Measured(
        name="plan",
        claim="`plan` at most 1.4 times a minimal Hydra app",
        limit=1.4,
        ours=ours,
        theirs=theirs,
        timings=by_turns(cases, ROUNDS),
    )


def _against_import(folder: Path, name: str, argv: list[str], module: str, claim: str) -> Measured:
    environ = environment(folder, COMP_LINE="python -m launcher cluster.pa")
    ours, theirs = " ".join(argv[3:]), f"import {module}"
    cases = {
        ours: command(argv, folder, environ),
        theirs: command([PYTHON, "-c", theirs], folder, environ),
        "bare python": command([PYTHON, "-c", "pass"], folder, environ),
    }
    return Measured(name=name, claim=claim, limit=1.0, ours=ours, theirs=theirs, timings=by_turns(cases, ROUNDS))
