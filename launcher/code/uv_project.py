"""`python=uv`: the project of a script, and the files that uv makes its environment of. They go along with the code, so
that another host, and a later resume, can make the same environment."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.code import snapshot
from launcher.errors import UsageError

WORD = "uv"
"""The value of `python=`."""
FOLDER = "uv_project"
"""Of the files in the snapshot."""
LOCK = "uv.lock"
_SETTINGS = ("uv.toml", ".python-version")
_SOURCE = re.compile(r'^source = \{ (directory|editable|virtual|path|registry) = "([^"]+)" \}$', re.MULTILINE)
_PACKAGE = re.compile(r'^\[\[package\]\]\nname = "([^"]+)"\nversion = "([^"]+)"$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class UvProject:
    """A project with a lock file."""

    lock: Path
    member: str
    """Folder in the snapshot of the pyproject.toml whose dependencies are installed."""
    files: dict[str, Path]
    """What uv reads, by the names in the snapshot: lock, settings, and the packages that come from these folders."""
    digest: str
    """SHA-256 over them, in hexadecimal."""
    packages: dict[str, str]
    """Every locked package with its version, in pip's spelling."""


def find(start: Path, where: str) -> UvProject:
    """The project of the nearest uv.lock, in a folder or above it. `where` is the folder
    in words, as `beside train.py`.

    Raises `UsageError` where there is none, or its files can't be read.
    """
    start = start.resolve()
    root = next((folder for folder in (start, *start.parents) if (folder / LOCK).is_file()), None)
    if root is None:
        raise UsageError(
            f"python=uv: there is no {LOCK} {where} or above it; `uv lock` makes that of a pyproject.toml, and "
            "`uv init --bare && uv add torch` begins a project (command line)"
        )
    try:
        return _read(root, start)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"python=uv: {root / LOCK} can't be used: {error} (command line)") from None


def _read(root: Path, start: Path) -> UvProject:
    text = (root / LOCK).read_text(encoding="utf-8")
    if not re.search(r"^version = \d+$", text, re.MULTILINE):
        raise UsageError(
            f"python=uv: {root / LOCK} is no lock file of uv; `uv lock` in {root} writes one (command line)"
        )
    if not (root / "pyproject.toml").is_file():
        raise UsageError(f"python=uv: {root / LOCK} has no pyproject.toml beside it (command line)")
    member = root
    if "\n[manifest]\nmembers = [" in text:  # a workspace: the nearest member's dependencies
        between = [start, *(folder for folder in start.parents if root in (folder, *folder.parents))]
        member = next(folder for folder in between if (folder / "pyproject.toml").is_file())
    found = dict.fromkeys(path for folder in (root, member) for name in _SETTINGS if (path := folder / name).is_file())
    found |= dict.fromkeys((root / LOCK, root / "pyproject.toml", member / "pyproject.toml"))
    for kind, named in _SOURCE.findall(text):
        if "://" not in named and not os.path.isabs(named):
            found |= dict.fromkeys(_files_of(kind, Path(os.path.normpath(root / named)), member, root / LOCK))
    base = Path(os.path.commonpath([root, *(path.parent for path in found)]))
    files = {f"{FOLDER}/{path.relative_to(base).as_posix()}": path for path in found}
    where = (Path(FOLDER) / member.relative_to(base)).as_posix()
    return UvProject(
        lock=root / LOCK,
        member=where,
        files=files,
        digest=hashlib.sha256(f"{where}\0{snapshot.digest_of(files)}".encode()).hexdigest(),
        packages=dict(_PACKAGE.findall(text)),
    )


def _files_of(kind: str, source: Path, member: Path, lock: Path) -> Iterator[Path]:
    """What uv reads of a package that the lock takes from a path beside it. Raises `UsageError`."""
    if not source.exists():
        raise UsageError(f"python=uv: {lock} takes a package from {source}, and nothing is there (command line)")
    if source.is_file():
        yield source
    elif kind == "virtual" or source == member:  # of which nothing is installed
        yield source / "pyproject.toml"
    else:
        yield from snapshot.collect(source)[0].values()
