"""A folder as git sees it: the files that it tracks or would track, and its state. The only caller of git.

A repository that somebody else made can name programs in its configuration: a file system monitor, filters, diffs,
hooks, transports. None of them runs, as its configuration is never in force: git gets a folder of settings made for the
question, with the repository's index and objects, and of its settings those in `_SETTINGS`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError

_UNKNOWN_FILES = ("ls-files", "-z", "--others", "--exclude-standard")
_SECONDS = 30
_SETTINGS = r"^core\.(filemode|ignorecase|symlinks|precomposeunicode|autocrlf|eol|excludesfile)$"
"""What a repository may set: how names and ends of lines are compared, and one more file of ignored names."""
_NO_PROGRAMS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
"""The user's own configuration is in force, but for these."""
_ATTRIBUTES = "* !filter !diff\n"
"""Before `.gitattributes`: no filter and no conversion, which the user's own configuration may define, applies."""
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "",  # nothing is fetched
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",  # its words are read, too
}
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH")
"""The others name another repository, inside a hook, or programs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repository:
    """The repository of a checkout."""

    top: Path
    folder: Path
    common: Path
    """What all worktrees share."""
    format: str
    """Of its objects, as sha1."""
    settings: tuple[str, ...]


_found: dict[Path, _Repository] = {}
_Call = Callable[..., subprocess.CompletedProcess[str] | None]
Ask = Callable[..., str]
"""From git's arguments to its output, which is empty if it fails; bytes that are not UTF-8 are surrogates."""


@contextlib.contextmanager
def asking(folder: Path, *, head: bool = False) -> Iterator[Ask]:
    """For questions about the checkout there, by `head` about its commit too. Without git, and outside a checkout, all
    answers are empty."""
    with _checkout(folder, head=head) as call:

        def ask(*arguments: str) -> str:
            done = call(*arguments)
            return done.stdout if done is not None and done.returncode == 0 else ""

        yield ask


def is_other_users(folder: Path) -> bool:
    """Whether git refuses to read the checkout since it belongs to another user: git-config(1), safe.directory."""
    done = _called(folder, ("rev-parse",))
    return done is not None and done.returncode != 0 and "dubious ownership" in done.stderr


def top_of(folder: Path) -> Path | None:
    """The top of the checkout that a folder is in; None outside one, and where git doesn't read it."""
    repository = _repository_of(folder)
    return repository.top if repository else None


def knows(file: Path) -> bool:
    """Whether the checkout that a file is in tracks it, or would."""
    with asking(file.parent) as ask:
        return bool(ask(*_UNKNOWN_FILES, "--cached", "--", file.name))


def files_of_checkout(folder: Path) -> dict[str, bool]:
    """Files below a folder of a checkout that git tracks or would, relative to it, and whether it tracks them; a
    checkout within is one name.

    Raises `UsageError` where git fails: an empty list would be an empty snapshot.
    """
    with _checkout(folder) as call:
        listed = _listed(folder, call(*_UNKNOWN_FILES, "--cached", "-t"))
    return {line[2:]: not line.startswith("?") for line in listed}


def files_of_folder(folder: Path) -> list[str]:
    """Files below a folder that is no checkout, but for those that its `.gitignore` files name, relative to it.

    Git reads them. Without git there must be none: raises `UsageError`.
    """
    with _settings_folder(None) as made:
        where = {"GIT_DIR": made, "GIT_WORK_TREE": str(folder)}
        done = _called(folder, _UNKNOWN_FILES, where)
    return _files_without_git(folder) if done is None else _listed(folder, done)


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


def _repository_of(folder: Path) -> _Repository | None:
    """The repository of the nearest folder above with `.git`, which a folder that only looks like a repository isn't.
    An empty `.git` is passed over, as git does."""
    for top in (folder, *folder.parents):
        if not (top / ".git").exists():
            continue
        if top not in _found and (repository := _read(top)):
            _found[top] = repository
        if top in _found or not (top / ".git").is_dir():
            return _found.get(top)
    return None


def _read(top: Path) -> _Repository | None:
    """Where a repository has its parts. Neither question makes git start a program."""
    only_here = {"GIT_CEILING_DIRECTORIES": str(top.parent)}
    asked = ("rev-parse", "--absolute-git-dir", "--git-common-dir", "--show-object-format")
    done = _called(top, asked, only_here)
    lines = done.stdout.splitlines() if done and not done.returncode else []
    if len(lines) != 3:
        return None
    read = _called(top, ("config", "-z", "--get-regexp", _SETTINGS), only_here)
    settings = read.stdout.split("\0") if read and not read.returncode else []
    return _Repository(
        top=top,
        folder=Path(lines[0]),
        common=top / lines[1],
        format=lines[2],
        settings=tuple(setting.replace("\n", "=", 1) for setting in settings if setting),
    )


def _commit(repository: _Repository) -> str:
    """The commit that is checked out; empty where there is none. It is not opened, which could fetch it."""
    done = _called(repository.top, ("rev-parse", "--quiet", "--verify", "HEAD"))
    commit = done.stdout.strip() if done and not done.returncode else ""
    return commit if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit) else ""


@contextlib.contextmanager
def _settings_folder(repository: _Repository | None, commit: str = "") -> Iterator[str]:
    """A folder of settings for git: gitrepository-layout(5)."""
    with tempfile.TemporaryDirectory(prefix="launcher-") as made:
        for name in ("objects", "refs", "info"):
            os.mkdir(f"{made}/{name}")
        files = {"HEAD": f"{commit or 'ref: refs/heads/none'}\n", "info/attributes": _ATTRIBUTES}
        files["config"] = "[core]\n\trepositoryFormatVersion = 0\n"
        if repository is not None:
            if repository.format != "sha1":
                version = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n"
                files["config"] = f"{version}\tobjectFormat = {repository.format}\n"
            links = {
                path.name: path for path in (repository.folder / "index", *repository.folder.glob("sharedindex.*"))
            }
            for name, target in {**links, "info/exclude": repository.common / "info" / "exclude"}.items():
                if target.is_file():
                    os.symlink(target, f"{made}/{name}")
        for name, text in files.items():
            Path(made, name).write_text(text, encoding="ascii")
        yield made


@contextlib.contextmanager
def _checkout(folder: Path, *, head: bool = False) -> Iterator[_Call]:
    """What git answers to questions about a checkout; None without one, without git, and where it takes too long."""
    repository = _repository_of(folder)
    if repository is None:
        yield lambda *arguments: None
        return
    commit = _commit(repository) if head else ""
    with _settings_folder(repository, commit) as made:
        where = {
            "GIT_DIR": made,
            "GIT_WORK_TREE": str(repository.top),
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
        }
        yield lambda *arguments: _called(folder, arguments, where, repository.settings)


def _called(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
) -> subprocess.CompletedProcess[str] | None:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
    }
    options = [word for setting in (*settings, *_NO_PROGRAMS) for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *options, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            env={**own, **_ENVIRONMENT, **(environment or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
