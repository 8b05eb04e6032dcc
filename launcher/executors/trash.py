"""Where removed runs wait for a week: a folder of the run root that is its user's alone.

    RUN_ROOT/.trash/<time>/<run id>/   what one `rm` took; `mv` to RUN_ROOT brings it back

In a root that a group shares each user has one of their own, `.trash-<uid>`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amp_launcher import records
from launcher import units
from launcher.errors import LauncherError, UsageError
from launcher.runs import ownership, selection
from launcher.runs.store import ARMS, SECRETS, Run

FOLDER = ".trash"
KEPT = 7 * 86400.0
"""Seconds for which a run is kept."""
_AT_ONCE = 8
"""Folders that are deleted side by side: a disk takes many deletions in about the time of one."""


def moment(before: float = 0.0) -> str:
    """The name of the folder for what one `rm` takes now, or took so many seconds before."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time() - before))


def put(run: Run, moment: str) -> None:
    """Move the folder of a run to the trash of its root, without its secrets, which go. Raises `LauncherError`."""
    forget_secrets(run)
    try:
        taken = _made(run.root) / moment
        with contextlib.suppress(FileExistsError):
            records.make_folder(taken)
        run.folder.rename(taken / run.id)
    except OSError as error:
        raise LauncherError(
            f"rm: {run.folder} could not be moved to the trash: {error.strerror}; rm --now deletes it at once"
        ) from None


def forget_secrets(run: Run) -> None:
    """Delete the secrets of a run. Raises `LauncherError`."""
    for secrets in (run.folder / SECRETS, *run.folder.glob(f"{ARMS}/*/{SECRETS}")):
        try:
            shutil.rmtree(secrets)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LauncherError(f"rm: {secrets} could not be deleted: {error.strerror}") from None


def runs_in(root: str) -> list[Run]:
    """The runs in the caller's trash of a root."""
    oldest_first = sorted(taken for folder in ownership.own_folders(root, FOLDER) for taken in folder.iterdir())
    return [Run(str(taken), name) for taken in oldest_first for name in selection.run_names(str(taken))]


def root_of(run: Run) -> str:
    """The run root of a run, which may be in its trash."""
    taken = Path(run.root)
    is_trash = taken.parent.name in (FOLDER, f"{FOLDER}-{os.geteuid()}")
    return str(taken.parents[1]) if is_trash else run.root


def expired(root: str) -> list[Run]:
    """Those that are there longer than they are kept."""
    return [run for run in runs_in(root) if os.path.basename(run.root) < moment(KEPT)]


def delete(runs: Iterable[Run]) -> None:
    """Delete runs of trashes; what does not go is named on stderr, and tried again by the next `rm`."""
    side_by_side(_delete, runs)


def _delete(run: Run) -> None:
    shutil.rmtree(run.folder, ignore_errors=True)
    if run.folder.exists():
        print(f"rm: {run.folder} could not be deleted; see who owns what is in it", file=sys.stderr)
    with contextlib.suppress(OSError):  # another run is in it
        os.rmdir(run.root)


def side_by_side(
    delete: Callable[[Run], None], runs: Iterable[Run], say: Callable[[Run], None] = lambda _: None
) -> None:
    """`delete` runs, several at a time, and `say` which are gone, in their order. One that can't be deleted keeps no
    other: then the first `LauncherError` is raised at the end. After an interrupt no further one is begun."""
    failed: list[LauncherError] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for run, deletion in [(run, pool.submit(delete, run)) for run in runs]:
                try:
                    deletion.result()
                except LauncherError as error:
                    failed.append(error)
                else:
                    say(run)
        except BaseException:  # an interrupt, too
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise failed[0]


def size(run: Run) -> int:
    """Bytes that a run's folder takes on its disk."""
    return size_of(run.path)


def size_of(folder: str) -> int:
    total, folders = 0, [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return total


def told(root: str, *, there: bool = False) -> str:
    """What is in the trash of a root, and what becomes of it; empty where nothing is. `there` is on a host that is
    asked from another one, whose own trash alone `rm --now` empties."""
    if not (runs := runs_in(root)):
        return ""
    place = os.path.dirname(runs[0].root)
    freed = "`rm --now` frees the space, and after a week the next `rm` does"
    if there:
        freed = "after a week the next `rm` of a run there frees the space, and deleting that folder does at once"
    return (
        f"in the trash {place}: {len(runs)} run{'s' * (len(runs) > 1)}, {units.size(sum(map(size, runs)))}; `mv` to "
        f"{root} brings one back; {freed}"
    )


def _made(root: str) -> Path:
    """The folder of the caller's trash in a root, which is made where it isn't there. Raises `UsageError` where it is
    another user's."""
    own = f"{FOLDER}-{os.geteuid()}" if ownership.is_shared(root) else FOLDER
    with contextlib.suppress(FileExistsError):
        records.make_folder(Path(root, own))
    for folder in ownership.own_folders(root, FOLDER):
        if folder.name == own:
            return folder
    raise UsageError(f"rm: {root}/{own} is not a folder of yours, so nothing can be kept there; rm --now deletes runs")
