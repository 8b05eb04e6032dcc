"""Slurm's last answer about the user's jobs, shared by all launchers of that user: a cluster is asked once in 30 s.

    STATE/launcher/slurm/<cluster>.json      the answer, and when Slurm was asked
    STATE/launcher/slurm/<cluster>.lock      held while Slurm is asked, so that only one launcher asks
    STATE/launcher/slurm/<cluster>.changed   its time of change: when a job was last submitted or cancelled

STATE is $XDG_STATE_HOME, or ~/.local/state; <cluster> is a digest of SLURM_CONF. Where the folder can't be written, the
answer is kept for this process alone. LAUNCHER_ASK_EVERY in the environment is another interval in seconds, for tests.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher import records
from launcher import safe_files
from launcher.errors import Unavailable
from launcher.executors.slurm import jobs
from launcher.executors.slurm.jobs import Row
from launcher.runs import run_roots, store

INTERVAL = 30.0
"""Seconds between two looks at one cluster."""
LONGEST = 600.0
"""The longest interval in seconds: each failure of Slurm to answer doubles it."""
MOST_FAILURES = 16
"""That are counted."""
SOON = 2.0
"""After a submission or cancellation Slurm may be asked at once, and again after so many seconds, when it knows why a
job waits, or has ended one. No question for this reason is closer to the last one than this."""
KEPT = 3600.0
"""Seconds for which the accounting's row of a job is kept. Verdicts are kept in run folders."""


class Answer(NamedTuple):
    """Slurm's last answer."""

    asked: float = 0.0
    """Seconds since 1970; 0 before the first time."""
    held: Mapping[str, Row] = {}
    """Every job of the user's that squeue listed."""
    accounted: Mapping[str, tuple[float, Row | None]] = {}
    """Jobs that squeue did not list as alive: when sacct was asked about each, and its newest row; None if it had
    none."""
    error: str = ""
    """Why squeue gave no answer, in words."""
    failures: int = 0
    """Questions to squeue in a row without an answer."""
    unanswered: frozenset[str] = frozenset()
    """Jobs that squeue did not list, and about which sacct gave no answer."""
    accounts_error: str = ""
    """Why sacct gave no answer, in words."""
    accounts_failures: int = 0
    """Questions to sacct in a row without an answer."""
    accounts_asked: float = 0.0
    """When sacct was last asked."""

    def row(self, job: str, script: str | None = None) -> Row | None:
        """Slurm's row of a job: that of squeue, with what only sacct knows of its end. A controller that crashed may
        give an id twice, so the submitted `script` has to match where both are known."""
        accounted = self.accounted.get(job, (0.0, None))[1]
        if (row := self.held.get(job)) is None:
            return accounted
        if script not in (None, row.script):
            return None
        if accounted is None or accounted.state != row.state:
            return row
        return accounted._replace(script=row.script)

    def has(self, job: str) -> bool:
        """Whether Slurm was asked about the job."""
        return job in self.held or job in self.accounted or job in self.unanswered

    def of_script(self, script: str) -> set[str]:
        """The jobs that were submitted with this script: of an array its own id."""
        return {job.partition("_")[0] for job, row in self.held.items() if row.script == script}


def ask(wanted: Collection[str], conf: str | None, *, signalled: float = 0.0, after: float = 0.0) -> Answer:
    """The shared answer, renewed first if that is due. sacct is asked about those of `wanted` that squeue does not list
    as alive. squeue's answer is there for other launchers before sacct's, and stays if sacct gives none.

    It is due 30 s after the last question, twice as long after each failure; at once and `SOON` after a change; if it
    is older than `after`; and, unless Slurm has failed to answer, for a job that it was not asked about yet and if it
    is older than `signalled`, the time of the newest sign that a job has ended.
    """
    path = _path(conf)
    answer = _read(path)
    if not _due(answer, path, wanted, signalled, after):
        return answer
    with run_roots.alone(path.with_suffix(".lock")):
        answer = _read(path)  # another launcher may have asked while this one waited for the lock
        if _due(answer, path, wanted, signalled, after):
            before, answer = answer, _ask_queue(answer, wanted, conf)
            _write(path, answer)
            if not answer.error and (ended := _ended(before, answer, wanted, after)):
                answer = _ask_accounts(answer, ended, conf)
                _write(path, answer)
    return answer


def changed(conf: str | None = None) -> None:
    """Note that a job was submitted or cancelled, so that Slurm may be asked soon."""
    path = _path(conf).with_suffix(".changed")
    _noted[path] = time.time()
    with contextlib.suppress(OSError):
        run_roots.make_private(path.parent)
        with open(path, "ab", opener=records.private) as file:
            os.utime(file.fileno())


def _interval(failures: int = 0) -> float:
    """Seconds between two questions, after so many that had no answer."""
    interval = INTERVAL
    with contextlib.suppress(ValueError):
        interval = float(os.environ.get("LAUNCHER_ASK_EVERY", ""))
    return min(max(interval, LONGEST), interval * 2.0**failures)


def _due(answer: Answer, path: Path, wanted: Collection[str], signalled: float, after: float) -> bool:
    now = time.time()
    if answer.asked > now + 1.0 or answer.asked < after:  # a clock that was set back
        return True
    if now - answer.asked >= _interval(answer.failures):
        return True
    soon = min(SOON, _interval())
    file = path.with_suffix(".changed")
    if answer.asked < max(_noted.get(file, 0.0), safe_files.changed(file)) + soon:
        return now - answer.asked >= soon
    return not answer.failures and (answer.asked < signalled or not all(map(answer.has, wanted)))


def _ask_queue(before: Answer, wanted: Collection[str], conf: str | None) -> Answer:
    now = time.time()
    try:
        held = jobs.listed(conf)
    except Unavailable as error:
        return before._replace(asked=now, error=str(error), failures=min(before.failures + 1, MOST_FAILURES))
    kept = {job: (when, row) for job, (when, row) in before.accounted.items() if now - when < KEPT}
    # What sacct said of other launchers' jobs is kept, and renewed until it is final.
    accounted = {job: (when, row) for job, (when, row) in kept.items() if row is None or not row.lives}
    unanswered = {*wanted, *before.unanswered, *kept} - held.keys() - accounted.keys()
    return before._replace(
        asked=now, held=held, accounted=accounted, error="", failures=0, unanswered=frozenset(unanswered)
    )


def _ended(before: Answer, answer: Answer, wanted: Collection[str], after: float) -> set[str]:
    """The jobs to ask sacct about, by squeue's new answer; none so soon after a failure of sacct."""
    wait = _interval(before.accounts_failures) if before.accounts_failures else 0.0
    if after <= before.accounts_asked and answer.asked - before.accounts_asked < wait:
        return set()
    return {job for job in (*wanted, *answer.unanswered) if job not in answer.held or not answer.held[job].lives}


def _ask_accounts(answer: Answer, ended: Collection[str], conf: str | None) -> Answer:
    """The answer with what sacct says of the jobs."""
    accounts, now = jobs.accounted(ended, conf), time.time()
    answered = {job: accounts.rows.get(job) for job in ended if job not in accounts.unanswered}
    return answer._replace(
        accounted={**answer.accounted, **{job: (now, rows[-1] if rows else None) for job, rows in answered.items()}},
        unanswered=answer.unanswered - answered.keys(),
        accounts_error=accounts.error,
        accounts_failures=min(answer.accounts_failures + 1, MOST_FAILURES) if accounts.error else 0,
        accounts_asked=now,
    )


# The file

_own: dict[Path, Answer] = {}
"""Answers of this process that could not be written."""
_noted: dict[Path, float] = {}
"""Changes that this process made."""


def _path(conf: str | None) -> Path:
    cluster = hashlib.sha256((conf or os.environ.get("SLURM_CONF") or "").encode(errors="surrogateescape"))
    return Path(run_roots.state_folder(), "slurm", f"{cluster.hexdigest()[:16]}.json")


def _read(path: Path) -> Answer:
    own = _own.get(path, Answer())
    try:
        stat = path.stat()
        shared = _parsed(path, stat.st_mtime_ns, stat.st_ino)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return own
    return shared if shared.asked >= own.asked else own


@functools.lru_cache(maxsize=8)
def _parsed(path: Path, changed: int, inode: int) -> Answer:
    """The answer in the file; `changed` and `inode` say which one it is."""
    values: dict[str, Any] = json.loads(path.read_bytes())
    return Answer(
        float(values["asked"]),
        {str(job): Row(*map(str, row)) for job, row in values["held"].items()},
        {
            str(job): (float(when), Row(*map(str, row)) if row else None)
            for job, (when, row) in values["accounted"].items()
        },
        str(values["error"]),
        int(values["failures"]),
        frozenset(map(str, values["unanswered"])),
        str(values["accounts_error"]),
        int(values["accounts_failures"]),
        float(values["accounts_asked"]),
    )


def _write(path: Path, answer: Answer) -> None:
    values = {"schema": 1, **answer._asdict(), "unanswered": sorted(answer.unanswered)}
    try:
        run_roots.make_private(path.parent)
        store.write_text(path, json.dumps(values))
    except OSError:  # no room, or a folder that can't be written: this process at least keeps the manners
        _own[path] = answer
    else:
        _own.pop(path, None)
