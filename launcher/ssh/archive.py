"""The launcher's own standard-library modules as one zip, named by its content: what the far side runs."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from pathlib import Path

import containers
import launcher
import recipes

LEFT_HERE = (
    "launcher/config/files.py",
    "launcher/config/folders.py",
    "launcher/executors/base.py",
    "launcher/executors/functions.py",
    "launcher/executors/job.py",
    "launcher/executors/local/executor.py",
    "launcher/executors/slurm/executor.py",
    "launcher/executors/ssh/executor.py",
    "launcher/ssh/fabric_transport.py",
    "launcher/ssh/ssh_settings.py",
)
"""What loads Hydra, submitit or fabric. All others import nothing foreign before they are called."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def archive() -> tuple[str, bytes]:
    """The zip and its SHA-256. The same modules give the same bytes, whenever and wherever they are packed."""
    running = Path(launcher.__path__[0]).parent
    data = running.read_bytes() if running.is_file() else _packed()  # a file: the far side, which runs the zip
    return hashlib.sha256(data).hexdigest(), data


def _packed() -> bytes:
    found: dict[str, Path] = {}
    for package in (launcher, containers, recipes):
        root = Path(package.__path__[0])
        for path in (*root.rglob("*.py"), *root.rglob("*.json"), *root.rglob("*.sh")):
            inside = path.relative_to(root)
            # Folders of frameworks end in an underscore; nothing of the launcher imports them.
            if not any(part.endswith("_") for part in inside.parts[:-1]):
                found[str(Path(root.name) / inside)] = path
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as out:
        for name in sorted(found.keys() - set(LEFT_HERE)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, found[name].read_bytes())
    return whole.getvalue()
