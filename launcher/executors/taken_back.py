"""Taking back what was written for another attempt of a run, where that attempt does not start."""

from __future__ import annotations

import contextlib
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from launcher.config import shell_record
from launcher.errors import UsageError
from launcher.executors.local.start import StartRefused
from launcher.runs import run_files, store
from launcher.runs.schema import Submission
from launcher.script.render import SUPERVISOR

_SCRIPTS = ("run.sh", SUPERVISOR)
_RECORDS = ("submission.json", "status.json", "cancelled", "STOP", store.VERDICT, shell_record.FILE)


@contextlib.contextmanager
def taken_back(folder: Path) -> Iterator[None]:
    """Leave a run's folder as it was where its next attempt is refused, or anything fails before it is submitted."""
    arms = [path for path in folder.glob(f"{store.ARMS}/*/*") if path.name in _SCRIPTS]
    requeues = (*folder.glob("attempts/*/requeued"), *folder.glob("attempts/*/restarted"))
    files = [*(folder / name for name in (*_SCRIPTS, *_RECORDS)), folder / "attempts/plan.json", *arms, *requeues]
    held = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) if path.is_file() else None for path in files}
    before, had_secrets = set(store.attempts(folder)), (folder / store.SECRETS).exists()
    try:
        yield
    except BaseException as error:  # an interrupt and a full disk too
        record = folder / "submission.json"
        new = store.read(Submission, record)
        nowhere = new.queue != "slurm" or run_files.is_refused(new)
        again = record.is_file() and record.read_bytes() != (held[record] or (None, 0))[0]
        if again and not (isinstance(error, UsageError | StartRefused) and nowhere):
            raise  # it may have started; Slurm may have it, as an array of a sweep that it took in part
        for path, was in held.items():
            _restore(path, was)
        for number in set(store.attempts(folder)) - before:
            shutil.rmtree(folder / f"attempts/{number}", ignore_errors=True)
        if not had_secrets:
            shutil.rmtree(folder / store.SECRETS, ignore_errors=True)
        store.clear_unfinished(folder.parent, folder.name)
        raise


def _restore(path: Path, was: tuple[bytes, int] | None) -> None:
    if was is None:
        path.unlink(missing_ok=True)
        return
    if path.is_file() and path.read_bytes() == was[0]:  # a full disk has no room to write it again
        return
    store.write_bytes(path, was[0], mode=was[1])
