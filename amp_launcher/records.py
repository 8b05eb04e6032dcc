"""How files of a run are opened for writing: by their modes, whatever the umask. Standard library only."""

from __future__ import annotations

import os
import stat

FUNCTION = "amp_launcher/job/function.py"
"""The file of a run's code that calls a function which was submitted as a job."""


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder that is its maker's alone. Raises `OSError`, such as `FileExistsError`."""
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)  # a umask may have taken more


def private(path: str, flags: int) -> int:
    """An opener for `open`: a new file is its writer's alone, and no link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def record(path: str, flags: int) -> int:
    """The same for a record or log: where a group shares the folder that it is in, the group may read it."""
    handle = private(path, flags)
    folder = os.stat(os.path.dirname(path) or ".").st_mode
    if folder & stat.S_IRGRP and folder & stat.S_ISGID:
        os.fchmod(handle, 0o640)
    return handle
