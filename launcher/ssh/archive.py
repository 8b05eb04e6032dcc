"""The launcher's own standard-library modules as one zip, named by its digest: the agent."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from pathlib import Path

import amp_launcher
import launcher
from amp_launcher import recipes
from launcher import containers

EXCLUDED = (
    "launcher/commands/chain.py",
    "launcher/config/chain.py",
    "launcher/config/files.py",
    "launcher/config/folders.py",
    "launcher/config/hydra_defaults.py",
    "launcher/executors/base.py",
    "launcher/executors/functions.py",
    "launcher/executors/job.py",
    "launcher/executors/local/executor.py",
    "launcher/executors/slurm/executor.py",
    "launcher/executors/ssh/executor.py",
    "launcher/ssh/fabric_transport.py",
    "launcher/ssh/key_login.py",
    "launcher/ssh/strict_connection.py",
)
"""Modules that import Hydra, submitit or fabric. All others import the standard library only at load time."""
OF_FRAMEWORKS = {"torch", "tensorflow", "paddle"}
"""Folders of amp_launcher that the launcher imports nothing of."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def archive() -> tuple[str, bytes]:
    """The SHA-256 and the zip. The same modules always give the same bytes."""
    running = Path(launcher.__path__[0]).parent
    data = running.read_bytes() if running.is_file() else _packed()  # a file: this is the agent
    return hashlib.sha256(data).hexdigest(), data


def _packed() -> bytes:
    paths: dict[str, Path] = {}
    for package in (launcher, containers, amp_launcher, recipes):
        root = Path(package.__path__[0])
        for path in (*root.rglob("*.py"), *root.rglob("*.json"), *root.rglob("*.sh")):
            inside = path.relative_to(root)
            if not OF_FRAMEWORKS.intersection(inside.parts) and not inside.name.startswith("train_"):
                paths[str(Path(*package.__name__.split(".")) / inside)] = path
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as out:
        for name in sorted(paths.keys() - set(EXCLUDED)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, paths[name].read_bytes())
    return content.getvalue()
