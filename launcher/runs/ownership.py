"""Whose files these are. What another user wrote is shown as theirs, and nothing is done because of what it says.

The owner of a file is its uid. The overflow uid may be several users (a user namespace, root squash): with it a root is
the caller's only if nobody else can write there, otherwise it is for looking only.

Whoever may replace a folder may replace what is in it, so what is about to be used is checked when it is used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from launcher.errors import UsageError

_OVERFLOW_UID = 65534
"""Everybody who has no uid in a user namespace: see user_namespaces(7)."""
SHARED = 0o3070
"""Of a root that a group shares: its group may write (and what is made there is the group's), and nobody may rename or
delete what another user made."""


class Owner(NamedTuple):
    """Who a run or a file belongs to, as seen by the caller."""

    mine: bool
    name: str = ""
    """Of another user; `uid 1005` where that uid has no name."""
    why: str = ""
    """Why the uid does not identify the owner, where it does not: a sentence."""


MINE = Owner(True)


def of(path: str | os.PathLike[str], root: str) -> Owner:
    """Who that file or folder in a run root belongs to: of a link, both it and what it leads to have to be the
    caller's. Raises `OSError`."""
    status = os.lstat(path)
    owner = of_uid(status.st_uid, root)
    if owner.mine and stat.S_ISLNK(status.st_mode):
        owner = of_uid(os.stat(path).st_uid, root)
    return owner


def is_mine(path: str | os.PathLike[str], root: str) -> bool:
    """Whether that file or folder of a run root is there, and the caller's."""
    try:
        return of(path, root).mine
    except OSError:
        return False


def own_folders(root: str, name: str) -> list[Path]:
    """The folders that the caller alone has in a run root under that name, those that are there: in a root that a group
    shares the uid is part of the name."""
    named = (Path(root, name), Path(root, f"{name}-{os.geteuid()}"))
    return [folder for folder in named if is_mine(folder, root) and folder.is_dir() and not folder.is_symlink()]


def refuse_other_users(verb: str, runs: Iterable[tuple[str, str]]) -> None:
    """Raises `UsageError` unless the folders of all runs, given as root and name, are the caller's. One that is gone
    is nobody's."""
    for root, name in runs:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            owner = of(f"{root}/{name}", root)
            if not owner.mine:
                raise UsageError(f"{verb}: {name} {described(owner)}; `ls`, `logs` and `report` show it")


def described(owner: Owner) -> str:
    """The owner of something that is not the caller's, as text to follow its name."""
    return f"can't be identified as yours: {owner.why}" if owner.why else f"belongs to {owner.name}"


def is_shared(root: str | os.PathLike[str]) -> bool:
    """Whether a group shares the root, or a folder of it that all its users write into."""
    return os.stat(root).st_mode & SHARED == SHARED


def root_problem(root: str, *, shared: bool) -> str:
    """Why runs can't be started in a run root that is there, because of who else may write in it; empty if they can."""
    owner, status = of(root, root), os.stat(root)
    if owner.why:
        return owner.why
    if shared and not owner.mine and not is_shared(root):
        return f"it is not set up for a group; {owner.name} can do that: chmod 3770 {root}"
    # Root of a container often works in a folder of the person whose container it is.
    if not shared and not owner.mine and status.st_uid != 0 and os.geteuid() != 0:
        return f"it belongs to {owner.name}, who could replace your code; say share=group"
    if not shared and _others_may_rename(status):
        return f"others could replace your code there; chmod go-w {root}, or say share=group"
    return ""


def _others_may_rename(status: os.stat_result) -> bool:
    """Whether others may rename what a user made in that folder. A group of the user's own name is theirs alone, as
    pam_umask(8) has it."""
    if status.st_mode & stat.S_ISVTX or not may_write(status):
        return False
    import grp

    try:
        return bool(status.st_mode & stat.S_IWOTH) or grp.getgrgid(status.st_gid).gr_name != _name(os.geteuid())
    except KeyError:
        return True


def may_write(status: os.stat_result) -> bool:
    """Whether others than its owner may write into a file or folder. The bits of the group stand for every entry of an
    access list too, see acl(5)."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def of_uid(uid: int, root: str) -> Owner:
    """The owner of a file of that uid in a run root."""
    if uid != os.geteuid():
        return Owner(False, _name(uid))
    return _of_overflow_uid(root) if uid == _OVERFLOW_UID else MINE


@functools.cache
def _of_overflow_uid(root: str) -> Owner:
    """The owner of files with the overflow uid, which is the caller's own too."""
    uid, status = _OVERFLOW_UID, os.stat(root)
    if status.st_uid == uid and not may_write(status):
        return MINE
    return Owner(
        False,
        _name(uid),
        f"files that you write in {root} get uid {uid}, as those of others may, and others may write there; "
        f"name another run_root, or `chmod go-w {root}`",
    )


@functools.cache
def _name(uid: int) -> str:
    import pwd

    try:
        # The overflow uid may be many users, whatever the password file calls it.
        return pwd.getpwuid(uid).pw_name if uid != _OVERFLOW_UID else f"uid {uid}"
    except KeyError:
        return f"uid {uid}"
