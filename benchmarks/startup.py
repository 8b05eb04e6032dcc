"""The time to the first output of a command."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Measured, by_turns, command
from benchmarks.places import PEERS, PYTHON, environment, launcher
from launcher.config.paths import conf_folder

ROUNDS = 25


def help(folder: Path) -> Measured:
    return _against_import(folder, "`--help`", launcher("--help"), "omegaconf")


def ls(folder: Path) -> Measured:
    return _against_import(folder, "`ls`", launcher("ls"), "omegaconf")


def completion(folder: Path) -> Measured:
    return _against_import(folder, "completing a key", launcher("-sc", "query=bash"), "hydra")


def plan(folder: Path) -> Measured:
    words = ["amp=o2"]
    environ = environment(folder, CONF=str(conf_folder()))
    hydra = command([PYTHON, str(PEERS / "hydra_app.py"), *words], folder, environ)
    cases = {
        "plan amp=o2": command(launcher("plan", *words), folder, environ),
        "minimal Hydra app, the same conf/ and word": hydra,
    }
    claim = "`plan` at most 0.8 times a minimal Hydra app"
    return Measured(claim=claim, limit=0.8, timings=by_turns(cases, ROUNDS))


def _against_import(folder: Path, what: str, argv: list[str], module: str) -> Measured:
    environ = environment(folder, COMP_LINE="python -m launcher cluster.pa")
    imports = f"import {module}"
    cases = {
        " ".join(argv[3:]): command(argv, folder, environ),
        imports: command([PYTHON, "-c", imports], folder, environ),
        "bare python": command([PYTHON, "-c", "pass"], folder, environ),
    }
    return Measured(claim=f"{what} no slower than `{imports}`", limit=1.0, timings=by_turns(cases, ROUNDS))
