"""The user's own script and what lies beside it: which files of them are part of the code that runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from launcher import runs, snapshot
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

    Of a git checkout it is what git tracks or would, submodules included; otherwise all but hidden folders and caches.
    Never runs, whose folders may lie beside the script, and grow. Of folders that links lead to, those that are within,
    and packages of Python elsewhere. Raises `UsageError` for more than a snapshot may hold.
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
                f"script={script}: its folder {root} goes along with it, and holds more than {limit} "
                f"({snapshot.largest(found)}); list data and results in .gitignore, or put the code into a folder or "
                "git checkout of its own"
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
    """The git checkout that the script belongs to; None where git ignores it or isn't there.

    Raises `UsageError` for one that git refuses to read, as another person's: what is ignored there can't be known.
    """
    within = next((each for each in script.parents if (each / ".git").exists()), None)
    if within is None:
        return None
    top = snapshot.git(script.parent, "rev-parse", "--show-toplevel", errors="surrogateescape").strip()
    if not top and snapshot.is_anothers(script.parent):
        raise UsageError(
            f"script={script}: git does not read {within}, which is another person's, so nobody can say which files "
            f"go along with the script; if you trust it: git config --global --add safe.directory '{within}'"
        )
    listed = snapshot.git(script.parent, *KNOWN_FILES, "--", script.name).strip()
    return Path(top) if top and listed and Path(top) in script.parents else None


def _in_checkout(root: Path) -> Iterator[Path]:
    listed = snapshot.git(root, *KNOWN_FILES, "-z", errors="surrogateescape")
    of_runs = functools.cache(_of_runs)
    for name in listed.split("\0"):
        path = root / name
        if not name or any(of_runs(root / each) for each in Path(name).parents if each.name):
            continue
        if path.is_symlink() and _leads_to_code(path, root):
            yield from _in_folder(path, links=False)
        elif not path.is_symlink() and (path / ".git").exists():  # a submodule, or another checkout inside this one
            yield from _in_checkout(path)
        else:
            yield path


def _in_folder(root: Path, links: bool = True) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        named = (each for each in folders if each != "__pycache__" and not each.startswith("."))
        folders[:] = sorted(each for each in named if not _of_runs(Path(folder, each)))
        for each in folders:
            path = Path(folder, each)
            if links and path.is_symlink() and _leads_to_code(path, root):
                yield from _in_folder(path, links=False)  # links may lead round in a circle
        for name in sorted(names):
            if name != ".git" and not name.endswith((".pyc", ".swp", "~")):
                yield Path(folder) / name


def _of_runs(folder: Path) -> bool:
    """Whether a folder is a run's, or what is kept about runs in the folder that they are in."""
    return folder.name in (snapshot.FOLDER, runs.UNFINISHED) or all(
        (folder / each).is_file() for each in ("plan.json", "run.sh")
    )


def _leads_to_code(link: Path, root: Path) -> bool:
    """Whether a link leads to a folder of code: one within the code, or a package of Python anywhere. Not to one that
    it is in itself, and not to data, of which there may be any amount."""
    target = link.resolve()
    if not target.is_dir() or target in link.parent.resolve().parents or target == link.parent.resolve():
        return False
    return root.resolve() in target.parents or (target / "__init__.py").is_file()


def absolute(named: str) -> Path:
    """The script as it was named, absolute, with links and `..` resolved. Raises `SettingsError` for no home folder."""
    try:
        return Path(named).expanduser().resolve()
    except RuntimeError:
        raise SettingsError(f"script={named}: there is no home folder to find it in", "script") from None
