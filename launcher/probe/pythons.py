"""The Python that a trainer runs with, and the frameworks in it, found without importing them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.config.paths import expanded

PACKAGES = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu+cpu"),
    "paddle": ("paddlepaddle-gpu", "paddlepaddle+cpu"),
    "torchao": ("torchao",),
}
"""Module -> pip's names of its builds; after a plus, a suffix that the version lacks. The last is for amp.gemm."""


VENV = "venv:"
"""Before the folder of an environment."""


def path_of(named: str) -> str:
    """The path that `python=` names: of venv:PATH the Python in it."""
    return f"{named.removeprefix(VENV).rstrip('/')}/bin/python" if named.startswith(VENV) else named


def resolve(named: str | None) -> str:
    """The Python to run the trainer with, absolute where it can be found."""
    if named is None:
        return sys.executable
    path = shutil.which(str(expanded(path_of(named))))
    return str(Path(path).absolute()) if path else path_of(named)


def problem(named: str | None) -> str:
    """Why venv:PATH names no environment, as venv, uv or conda make them; empty for one, and for other Pythons."""
    if named is None or not named.startswith(VENV):
        return ""
    folder = expanded(named.removeprefix(VENV))
    made = [name for name in ("pyvenv.cfg", "conda-meta") if (folder / name).exists()]
    if made and os.access(folder / "bin" / "python", os.X_OK):
        return ""
    if folder.is_dir():
        return f"python={named}: {folder.absolute()} is no environment, as it lacks pyvenv.cfg or bin/python"
    return (
        f"python={named}: there is no {folder.absolute()}; `python3 -m venv {folder.absolute()}` makes an environment"
    )


TELL = (
    "import importlib.util as u, platform as p\n"
    "print(p.python_version())\n"
    "try:\n"
    "    import importlib.metadata as m\n"
    "    d = [(x.metadata['Name'] or '', x.version) for x in m.distributions()]\n"
    "except ImportError:\n"  # before Python 3.8, as in images of 2019
    "    import pkg_resources as r\n"
    "    d = [(x.project_name, x.version) for x in r.working_set]\n"
    "d = {n.lower().replace('_', '-'): v for n, v in d}\n"
    f"for k, v in {PACKAGES!r}.items():\n"
    "    if u.find_spec(k):\n"
    "        f = [d[n] + a + b for n, a, b in (x.partition('+') for x in v) if n in d]\n"
    "        print(k, (f + ['unknown'])[0])\n"
)
"""A program for any Python 3: prints its version, and a line for each framework that it can import."""


def look_into(python: str, searched: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Its version, and its frameworks with theirs. `searched` is from `job_environment.search_path`."""
    if python == sys.executable:
        specs = {module: importlib.util.find_spec(module) for module in PACKAGES}
        folders = {name: Path(spec.origin or "/").parent.parent for name, spec in specs.items() if spec is not None}
        entries = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
        if searched or entries.isdisjoint(map(os.path.abspath, folders.values())):
            versions = {module: _version(PACKAGES[module], folder) for module, folder in folders.items()}
            return sys.version.split()[0], versions
    environ = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **searched}
    try:
        done = subprocess.run([python, "-c", TELL], capture_output=True, text=True, timeout=60, cwd="/", env=environ)
    except (OSError, subprocess.TimeoutExpired):
        return "", {}
    lines = done.stdout.split("\n")
    return lines[0], {name: version for name, _, version in (line.partition(" ") for line in lines[1:]) if version}


def _version(builds: Sequence[str], folder: Path) -> str:
    """Of the first of its builds that is installed."""
    there = os.listdir(folder)
    for distribution, plus, build in (name.partition("+") for name in builds):
        start, end = f"{distribution.replace('-', '_')}-", ".dist-info"
        for name in there:
            if name.startswith(start) and name.endswith(end):
                return f"{name[len(start) : -len(end)]}{plus}{build}"
    import importlib.metadata  # which takes longer to import than the rest of this module

    for distribution, plus, build in (name.partition("+") for name in builds):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{importlib.metadata.version(distribution)}{plus}{build}"
    return "unknown"
