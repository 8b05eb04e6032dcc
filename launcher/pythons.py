"""The Python that a trainer runs with, and the frameworks in it: told without importing any."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {"torch": "torch", "tensorflow": "tensorflow", "paddle": "paddlepaddle"}
"""What can be imported, and what pip calls it."""


def resolve(named: str | None) -> str:
    """The Python to run the trainer with, absolute where it can be found."""
    if named is None:
        return sys.executable
    found = shutil.which(str(Path(named).expanduser()))
    return str(Path(found).absolute()) if found else named


def look_into(python: str) -> tuple[str, dict[str, str]]:
    """Version of that Python and the frameworks it can import, without importing them."""
    if python == sys.executable:
        return platform.python_version(), _packages()
    text = (
        "import importlib.util as u, importlib.metadata as m, platform as p\n"
        "print(p.python_version())\n"
        f"for k, v in {PACKAGES!r}.items():\n"
        "    if u.find_spec(k): print(k, m.version(v))\n"
    )
    try:
        done = subprocess.run([python, "-c", text], capture_output=True, text=True, timeout=60, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return "", {}
    lines = done.stdout.split("\n")
    return lines[0], {name: version for name, _, version in (line.partition(" ") for line in lines[1:]) if version}


def _packages() -> dict[str, str]:
    found = {}
    for module, distribution in PACKAGES.items():
        spec = importlib.util.find_spec(module)
        if spec is not None:
            found[module] = _version(distribution, Path(spec.origin or "/").parent.parent)
    return found


def _version(distribution: str, folder: Path) -> str:
    """The version of a package that lies in this folder."""
    start, end = f"{distribution}-", ".dist-info"
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(end):
            return name[len(start) : -len(end)]
    import importlib.metadata  # which takes longer to import than the rest of this module

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
