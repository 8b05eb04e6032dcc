"""The user's own script and what lies beside it: which files of them are part of the code that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from launcher import snapshot
from launcher.errors import UsageError
from recipes.typed import SettingsError

FOLDER = "script"
"""Where they lie in the snapshot, beside this project's own package."""
MAX_FILES = 20_000
KNOWN_FILES = ("ls-files", "--cached", "--others", "--exclude-standard")
"""What git is asked for: files that it tracks, or would."""


def name_in_snapshot(script: Path) -> str:
    """The script's own name in the snapshot, as `script/train.py`."""
    return f"{FOLDER}/{script.relative_to(root_of(script)).as_posix()}"


def root_of(script: Path) -> Path:
    """The folder that goes along with a script: its git checkout, or the folder it is in where git doesn't know it."""
    return _checkout(script) or script.parent


def collect(script: Path) -> dict[str, Path]:
    """The files that go along with a script, itself among them, by their names in the snapshot.

    Of a git checkout it is what git tracks or would; otherwise all but hidden folders and caches. Raises `UsageError`
    for more than a snapshot may hold.
    """
    root = root_of(script)
    found: dict[str, Path] = {}
    total = 0
    for path in _in_checkout(root) if _checkout(script) else _in_folder(root):
        if path.name == ".env" or path.name.startswith(".env.") or not path.is_file():
            continue
        found[f"{FOLDER}/{path.relative_to(root).as_posix()}"] = path
        total += path.stat().st_size
        if total > snapshot.MAX_BYTES or len(found) > MAX_FILES:
            limit = f"{snapshot.MAX_BYTES // 2**20} MiB" if total > snapshot.MAX_BYTES else f"{MAX_FILES:,} files"
            raise UsageError(
                f"script={script}: its folder {root} goes along with it, and holds more than {limit}; put the code "
                "into a folder or git checkout of its own, without data and results"
            )
    return found


def check(named: str, script: Path, *, alone: bool) -> None:
    """Refuse a script that isn't there, or that couldn't be run from the snapshot. Raises `UsageError`."""
    try:
        if script.is_dir():
            raise UsageError(f"script={named} is a folder; name the file in it")
        if not script.is_file():
            near = sorted(each.name for each in script.parent.glob("*.py")) if script.parent.is_dir() else []
            there = f"; {script.parent} has {', '.join(near[:8])}" if near else ""
            raise UsageError(
                f"script={named}: there is no such file{there}. One that is only in the container's image is named "
                "script=image:PATH"
            )
        script.read_bytes()
    except PermissionError:
        raise UsageError(f"script={named} may not be read") from None
    shadowing = (script.parent / "recipes").is_dir() or (script.parent / "recipes.py").is_file()
    if shadowing and not alone:
        raise UsageError(
            f"script={named}: the recipes beside it would be taken for this project's own; rename it, or start the "
            "script with train.bare=true"
        )


def _checkout(script: Path) -> Path | None:
    """The git checkout that the script belongs to; None where git ignores it or isn't there."""
    if not any((each / ".git").exists() for each in script.parents):
        return None
    top = snapshot.git(script.parent, "rev-parse", "--show-toplevel", errors="surrogateescape").strip()
    listed = snapshot.git(script.parent, *KNOWN_FILES, "--", script.name).strip()
    return Path(top) if top and listed and Path(top) in script.parents else None


def _in_checkout(root: Path) -> Iterator[Path]:
    listed = snapshot.git(root, *KNOWN_FILES, "-z", errors="surrogateescape")
    for name in listed.split("\0"):
        if name:
            yield root / name


def _in_folder(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each != "__pycache__" and not each.startswith("."))
        for name in sorted(names):
            if not name.endswith((".pyc", ".swp", "~")):
                yield Path(folder) / name


def absolute(named: str) -> Path:
    """The script as it was named, absolute, with links and `..` resolved. Raises `SettingsError` for no home folder."""
    try:
        return Path(named).expanduser().resolve()
    except RuntimeError:
        raise SettingsError(f"script={named}: there is no home folder to find it in", "script") from None
