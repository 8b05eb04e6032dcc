"""A folder as git sees it: the files that it tracks or would track, and its state. The only caller of git."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.errors import UsageError

_UNKNOWN_FILES = ("ls-files", "-z", "--others", "--exclude-standard")
_SECONDS = 30
# Inside a git hook these name another repository.
_OWN_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE")


def run(folder: Path, *arguments: str, errors: str = "replace") -> str:
    """The output of git there; empty without git, or if it fails. `errors` says how to decode bytes that are not UTF-8:
    `surrogateescape` keeps names of files."""
    done = _called(folder, arguments, errors)
    return done.stdout if done is not None and done.returncode == 0 else ""


def is_anothers(folder: Path) -> bool:
    """Whether git refuses to read the checkout since it belongs to another user: git-config(1), safe.directory."""
    done = _called(folder, ("rev-parse",), "replace")
    return done is not None and done.returncode != 0 and "dubious ownership" in done.stderr


def is_in_checkout(folder: Path) -> bool:
    return any((parent / ".git").exists() for parent in (folder, *folder.parents))


def knows(file: Path) -> bool:
    """Whether the checkout that a file is in tracks it, or would."""
    return bool(run(file.parent, *_UNKNOWN_FILES, "--cached", "--", file.name))


def files_of_checkout(folder: Path) -> list[str]:
    """Files below a folder of a checkout that git tracks or would, relative to it; a checkout within is one name.

    Raises `UsageError` where git fails: an empty list would be an empty snapshot.
    """
    return _listed(folder, _called(folder, (*_UNKNOWN_FILES, "--cached"), "surrogateescape"))


def files_of_folder(folder: Path) -> list[str]:
    """Files below a folder that is no checkout, but for those that its `.gitignore` files name, relative to it.

    Git reads them, with a repository made for the question. Without git there must be none: raises `UsageError`.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-") as empty:
        made = _called(Path(empty), ("init", "--quiet", "--template=", "."), "surrogateescape")
        if made is None:
            return _files_without_git(folder)
        where = {"GIT_DIR": f"{empty}/.git", "GIT_WORK_TREE": str(folder)}
        return _listed(folder, _called(folder, _UNKNOWN_FILES, "surrogateescape", where))


def _listed(folder: Path, done: subprocess.CompletedProcess[str] | None) -> list[str]:
    if done is None:
        raise UsageError(
            f"git did not list the files of {folder}, the folder of the script, within {_SECONDS} s; put the code "
            "into a folder or git checkout of its own"
        )
    if done.returncode:
        why = " ".join(done.stderr.strip().splitlines()[-1:])
        raise UsageError(f"git can't list the files of {folder}, the folder of the script: {why}")
    return list(dict.fromkeys(name for name in done.stdout.split("\0") if name))


def _files_without_git(folder: Path) -> list[str]:
    def walked() -> Iterator[str]:
        for inner, folders, names in os.walk(folder):
            if ".gitignore" in names:
                raise UsageError(f"{inner}/.gitignore is read by git, which is not installed here; install git")
            links = [folder for folder in folders if os.path.islink(os.path.join(inner, folder))]
            folders[:] = [folder for folder in folders if folder != ".git"]
            yield from (os.path.relpath(os.path.join(inner, name), folder) for name in (*names, *links))

    return sorted(walked())


def _called(
    folder: Path, arguments: Sequence[str], errors: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    own = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors=errors,
            timeout=_SECONDS,
            env={**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(environment or {})},  # its words, too, are read
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
