"""`notify=`: the launcher that waits for runs starts their command, in place of the runs' own scripts (`notify.sh`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher import records
from launcher.executors import backends
from launcher.runs import run_ids, run_roots, selection, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import FINISHED, Seen
from launcher.runs.store import Run

EVERY = 1.0
"""Seconds between two looks for notices, of which each tells the runs' scripts that this launcher waits."""
TELLING = 20.0
"""Seconds that the command has, as in `notify.sh`."""
_FIELDS = "notify", "secrets", "name", "words"
"""Of a plan: what is started, what is hidden, what a notice repeats."""
WAITS = ".waits"
"""Of a run's folder: touched while a launcher waits for the run."""


@contextlib.contextmanager
def told(folders: Sequence[Path]) -> Iterator[None]:
    """In here a thread starts the commands of these runs. A run on another host tells of itself."""
    near = [folder for folder in folders if not run_roots.is_remote(str(folder.parent))]
    plans = {folder: store.read(PlanRecord, folder / "plan.json", _FIELDS) for folder in near}
    watched = {folder: plan for folder, plan in plans.items() if plan.notify}
    if not watched:
        yield
        return
    end = threading.Event()

    def wait() -> None:
        while True:
            for folder in watched:
                with contextlib.suppress(OSError):
                    (folder / WAITS).touch()
            _deliver(watched)
            if end.wait(EVERY):
                return

    teller = threading.Thread(target=wait, daemon=True)
    teller.start()
    try:
        yield
    finally:
        end.set()
        teller.join()
        for folder in watched:
            (folder / WAITS).unlink(missing_ok=True)
        _deliver(watched)  # what was left to this process until now
        _tell_of_lost(watched)


def _deliver(watched: Mapping[Path, PlanRecord]) -> None:
    for folder, plan in watched.items():
        for notice in sorted(folder.glob("attempts/*/notice-*.json")):
            claimed = notice.with_name(notice.name.replace("notice-", "told-", 1))
            with contextlib.suppress(OSError):  # the run's script was first
                notice.rename(claimed)
                start(plan, claimed)


def start(plan: PlanRecord, notice: Path) -> None:
    """Start the command of a plan with a notice on its input, and wait for it, but not long."""
    environment = {name: value for name, value in os.environ.items() if name not in plan.secrets}
    with open(notice, "rb") as text, open(notice.with_name("notify.log"), "ab") as log:
        try:
            done = subprocess.run(
                plan.notify,
                stdin=text,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the runs
                timeout=TELLING,
                check=False,
            )
            problem = f"ended with exit code {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = f"failed: {error}"
        if problem:
            log.write(f"the command of notify= {problem}\n".encode())


def _tell_of_lost(watched: Mapping[Path, PlanRecord]) -> None:
    """Tell of the end of runs whose scripts could not. Nobody tells of a run that was removed."""
    seen = backends.states_of([Run(str(folder.parent), folder.name) for folder in watched if folder.is_dir()])
    if not all(row.state.finished for row in seen):
        return
    lost = [row for row in seen if row.files.status is None or row.files.status.state not in FINISHED]
    for row in lost:
        sweep = run_ids.sweep_of(row.run.id)
        plan = watched[row.run.folder]
        if not sweep:
            text = f"{row.run.id} {row.state.name}: {row.state.reason}"
            _tell(row, plan, text, {"name": plan.name, "words": plan.words, **_summary(row)})
        elif _first_to_tell(row.run.root, sweep):
            _tell_of_sweep(sweep, row, plan, seen)
        if sweep:
            return


def _first_to_tell(root: str, sweep: str) -> bool:
    """Whether nobody has told of this end of a sweep: as `notice_of_sweep` in `notify.sh` has it, each start of runs of
    the sweep has an end of its own."""
    cells = selection.sweep_runs(root, sweep)
    mark = cells[0].folder / "attempts" / f".told-{sum(max(1, len(store.attempts(cell.path))) for cell in cells)}"
    mark.parent.mkdir(exist_ok=True, mode=0o700)
    try:
        mark.mkdir()
    except FileExistsError:
        return False
    return True


def tell_of_search(sweep: str, seen: Sequence[Seen]) -> None:
    """Tell of the end of a search, whose trials these are; again where it was continued by further ones."""
    for last in seen[-1:]:
        plan = store.read(PlanRecord, last.run.folder / "plan.json", _FIELDS)
        if plan.notify:
            _tell_of_sweep(sweep, last, plan, seen)


def _tell_of_sweep(sweep: str, row: Seen, plan: PlanRecord, seen: Sequence[Seen]) -> None:
    counts = Counter(row.state.name for row in seen)
    text = f"{sweep}: {', '.join(f'{count} {name}' for name, count in counts.items())}"
    _tell(row, plan, text, {"sweep": sweep, "runs": list(map(_summary, seen))})


def _tell(row: Seen, plan: PlanRecord, text: str, words: Mapping[str, Any]) -> None:
    """Write the notice into the folder of this run and start its command, unless the notice is there already."""
    attempt = row.run.folder / "attempts" / str(row.state.attempt or "")  # a run that never began has none
    attempt.mkdir(exist_ok=True, mode=0o700, parents=True)
    notice = attempt / "told-ended.json"
    if not notice.exists():
        told = json.dumps({"schema": 1, "event": "ended", "text": text, **words}, indent=1)
        for secret in _secrets(plan):
            told = told.replace(json.dumps(secret)[1:-1], "***")
        store.write_text(notice, f"{told}\n", records.record)
        start(plan, notice)


def _secrets(plan: PlanRecord) -> Iterator[str]:
    """The texts of a run's secrets that are known here: of files, and of variables whose file ended with the run."""
    for name, path in plan.secrets.items():
        with contextlib.suppress(OSError):
            yield from filter(None, [Path(path).read_text(errors="replace").rstrip("\n")])
        if name in os.environ:
            yield from filter(None, [os.environ[name]])


def _summary(row: Seen) -> dict[str, Any]:
    return {
        "run": row.run.id,
        "folder": row.run.path,
        "state": row.state.name,
        "reason": row.state.reason,
        "status": store.read_or_empty(row.run.folder / "status.json") or None,
        "result": store.read_or_empty(row.run.folder / "result.json") or None,
    }
