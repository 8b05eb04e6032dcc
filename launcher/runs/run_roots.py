"""The folders that hold runs: those submitted to from this machine, and the one for records of remote runs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from amp_launcher import records
from launcher.errors import UsageError


def known() -> list[str]:
    """Run roots that were submitted to from this machine and are there now, in the order of their first use."""
    return [line for line in dict.fromkeys([*_recorded(), remote()]) if line and os.path.isdir(line)]


def _recorded() -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        # As file names are, which need not be text in any encoding.
        return os.fsdecode(_roots_file().read_bytes()).split("\n")
    return []


def remember(root: Path) -> None:
    """Add a run root to the known ones."""
    text, file = str(root.absolute()), _roots_file()
    if text in _recorded():
        return
    make_private(file.parent)
    # One short append is whole even when two launchers do it at once.
    with open(file, "ab", opener=records.private) as stream:
        stream.write(os.fsencode(f"{text}\n"))


def named(run_root: str | None) -> list[str]:
    """The root a person named, or all known ones. Raises `UsageError` for one that is no folder."""
    if run_root is None:
        return known()
    root = os.path.abspath(os.path.expanduser(run_root))
    if not os.path.isdir(root):
        raise UsageError(f"run_root={run_root} is no folder")
    return [root]


def remote() -> str:
    """The root with the records of runs on other hosts."""
    return f"{state_folder()}/elsewhere"


def is_remote(root: str) -> bool:
    """Whether the runs in that root are on other hosts, by whatever path it is named."""
    return root == remote() or _is_same(root, remote())


@functools.lru_cache(maxsize=256)
def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _roots_file() -> Path:
    return Path(state_folder(), "roots")


def state_folder() -> str:
    """Where the launcher keeps what belongs to the user and not to a run."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{state}/launcher"


def make_private(folder: Path) -> None:
    """Make a folder and those that lead to it, where they aren't there, for their maker alone at every umask."""
    for parent in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            if not parent.exists():
                records.make_folder(parent)


@contextlib.contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, after whoever has it. A folder's lock would not hold between the nodes of a home on NFS.
    Raises `OSError` where it can't be made or locked, and `BlockingIOError` where another has it and this is not to
    wait."""
    with open(file, "ab", opener=records.private) as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """The same, without the lock where it can't be made."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            make_private(lock.parent)
            held.enter_context(locked(lock))
        yield


@contextlib.contextmanager
def alone_with(run: Path, file: str, deed: str) -> Iterator[None]:
    """Lock a run's folder for what two launchers would do twice; `deed` names it: `resumed`. Raises `UsageError`."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(run / file, wait=False))
        except FileNotFoundError:  # moved or deleted since it was listed, as on its host
            raise UsageError(f"there is no run {run.name} in {run.parent} on {os.uname().nodename}") from None
        except BlockingIOError:
            raise UsageError(f"{run.name} is being {deed} by another launcher this moment") from None
        yield
