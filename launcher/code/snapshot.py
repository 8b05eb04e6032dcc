"""The code that runs is a snapshot: taken once, named by its content, read-only, the same at every resume."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.code import exclusions, git
from launcher.errors import UsageError

SCRIPT = "script"
"""Folder of a user's script and its code in the snapshot, beside this project's own package."""
MAX_BYTES = 64 * 2**20
MAX_DIFF_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The snapshot of the code that would run."""

    digest: str
    """SHA-256 over names and contents, in hexadecimal."""
    root: str
    """Folder that the files are taken from."""
    files: dict[str, str] = field(default_factory=dict)
    """Where each file is here, by its name in the snapshot."""
    script: str | None = None
    """Folder that the user's own script is taken from, which may have a checkout of its own."""

    @property
    def paths(self) -> dict[str, Path]:
        return {name: Path(path) for name, path in self.files.items()}


def collect(*packages: Path) -> list[dict[str, Path]]:
    """Files of package folders, of each by the names they get in the snapshot. Credentials, caches, what git ignores,
    and links that lead nowhere are left out."""
    roots = [os.path.realpath(package) for package in packages]
    ignored = _ignored(roots)
    return [dict(_files(package, root, ignored)) for package, root in zip(packages, roots, strict=True)]


def _files(package: Path, root: str, ignored: Set[str]) -> Iterator[tuple[str, Path]]:
    if f"{root}/__init__.py" in ignored:  # the whole package is, as one that is installed into a checkout
        ignored = set()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not exclusions.is_derived(Path(folder, name)))
        inside = f"{folder}/".removeprefix(f"{root}/")
        for name in sorted(names):
            path = f"{folder}/{name}"
            if path in ignored or exclusions.is_debris(name) or not os.path.isfile(path):
                continue
            if not exclusions.is_credential(path, root, linked=os.path.islink(path)):
                yield f"{package.name}/{inside}{name}", Path(f"{package}/{inside}{name}")


def _ignored(roots: Sequence[str]) -> set[str]:
    """Files below these folders that the git checkouts which they are in ignore."""
    found, asked = set(), ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--")
    tops = {root: git.top_of(Path(root)) for root in roots}
    for top in filter(None, dict.fromkeys(tops.values())):
        within = [root for root in roots if tops[root] == top]
        with git.asking(top) as ask:
            found |= {f"{top}/{name}" for name in ask(*asked, *within).split("\0")}
    return found


def describe(root: Path, files: Mapping[str, Path], script: Path | None = None) -> Code:
    """The snapshot of the files. `script` is the root of a user's own script among them. Raises `UsageError` for too
    much, for a file that may not be read, and where they change meanwhile: an editor, or git, may be at work."""
    try:
        return _describe(root, files, script)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename} belongs to the code of the job and can't be read: change its mode, or list it in "
            ".gitignore"
        ) from None
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} went away while the code was looked at; run the command again") from None


def _describe(root: Path, files: Mapping[str, Path], script: Path | None) -> Code:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        raise UsageError(
            f"the code to run is {total / 2**20:.0f} MiB, more than the {MAX_BYTES // 2**20} MiB a snapshot may hold: "
            f"keep data and results out of it, or list them in .gitignore ({largest(files, sizes)})"
        )
    return Code(
        digest=digest_of(files),
        root=str(root),
        files={name: str(path) for name, path in files.items()},
        script=str(script) if script else None,
    )


def largest(files: Mapping[str, Path], sizes: Mapping[str, int]) -> str:
    """The folders with a fifth or more of all bytes, or of all files where the bytes would fit, in words; at least the
    largest one. Files of the top folder count alone. Files are named as in the snapshot; `sizes` are in bytes."""
    by_size = sum(sizes.values()) > MAX_BYTES
    folders: dict[str, list[str]] = {}
    for name in files:  # the first component is the package's, or the script's
        folders.setdefault("/".join(name.split("/")[:2]), []).append(name)
    weights = {top: sum(sizes[name] if by_size else 1 for name in names) for top, names in folders.items()}
    shown: list[str] = []
    for top, weight in sorted(weights.items(), key=lambda item: -item[1]):
        if shown and 5 * weight < sum(weights.values()):
            break
        names, path = folders[top], files[folders[top][0]]
        size = f"{sum(sizes[name] for name in names) / 2**20:,.0f} MiB"
        count = f"{len(names):,} file{'s' * (len(names) > 1)}"
        below = names[0].count("/") - top.count("/")
        shown.append(f"{path.parents[below - 1]}/ {size} in {count}" if below else f"{path} {size}")
    return "largest: " + ", ".join(shown)


def is_executable(path: Path) -> bool:
    """Whether its owner may execute the file, which is kept of its mode, as git does."""
    return bool(path.stat().st_mode & stat.S_IXUSR)


def digest_of(files: Mapping[str, Path]) -> str:
    """SHA-256 over names, contents and which files may be executed, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(files):
        with open(files[name], "rb", buffering=0) as stream:
            content, status = stream.read(), os.fstat(stream.fileno())
        mark = "x" if status.st_mode & stat.S_IXUSR else ""
        digest.update(os.fsencode(name) + f"\0{mark}{len(content)}\0".encode())  # a name of a file may be no UTF-8
        digest.update(content)
    return digest.hexdigest()


def origin(root: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Where files come from, for the record: their folder, the commit of its git checkout, whether some of them differ
    from that or are not in it, and how."""
    with git.asking(root, head=True) as ask:
        commit, dirty = _state(root, files, ask)
        return {"root": str(root), "commit": commit, "dirty": dirty, "diff": _diff(root, ask) if dirty else ""}


def git_state(root: Path, files: Sequence[Path]) -> tuple[str | None, bool]:
    """See `_state`."""
    with git.asking(root, head=True) as ask:
        return _state(root, files, ask)


def _state(root: Path, files: Sequence[Path], ask: git.Ask) -> tuple[str | None, bool]:
    """The commit of a checkout, and whether these files may differ from it: tracked ones are changed, there or in a
    checkout within, or one of these is not tracked. None and False where git does not track the first of them."""
    top = git.top_of(root)
    if top is None or not files or not ask("ls-files", "--", str(files[0])):
        return None, False  # an environment inside somebody's checkout says nothing about this code
    asked = ("status", "-z", "--porcelain=v2", "--branch", "--untracked-files=all", "--ignore-submodules=dirty")
    entries = ask(*asked).split("\0")
    commits = [entry.split()[-1] for entry in entries if entry.startswith("# branch.oid ") and "(initial)" not in entry]
    changed = any(entry.startswith(("1 ", "2 ", "u ")) for entry in entries)
    unknown = {top / entry[2:] for entry in entries if entry.startswith("? ")}
    holding = {path.parent for path in files}  # few, while files are many
    within = {folder for held in holding for folder in (held, *held.parents) if root in folder.parents}
    inner = (folder for folder in sorted(within) if (folder / ".git").exists() and not git.is_other_users(folder))
    below = ((folder, [path for path in files if folder in path.parents]) for folder in inner)
    return (commits[0] if commits else None), (
        changed or not unknown.isdisjoint(files) or any(git_state(*each)[1] for each in below)
    )


def _diff(root: Path, ask: git.Ask) -> str:
    """Uncommitted changes of tracked files in the checkout but for credentials, also those that went away, cut at a
    size; empty outside git."""
    top = git.top_of(root)
    if top is None:
        return ""
    asked = (
        "diff",
        "HEAD",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-renames",
        "--ignore-submodules=dirty",
    )

    def names(*further: str) -> list[str]:
        found = ask(*asked, "--name-only", "-z", *further)
        return [name for name in found.split("\0") if name]

    if not (changed := names()):
        return ""
    keys = [name for name in names(f"-G^[ \t]*({exclusions.PRIVATE_KEYS})") if not name.endswith(".py")]
    secret = {*keys, *(name for name in changed if exclusions.is_credential(top / name, top))}
    others = (":(top)", *(f":(top,exclude,literal){name}" for name in secret))
    text = ask(*asked, "--", *others).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if len(text) > MAX_DIFF_BYTES:
        return text[:MAX_DIFF_BYTES] + f"\n... cut at {MAX_DIFF_BYTES} characters\n"
    return text
