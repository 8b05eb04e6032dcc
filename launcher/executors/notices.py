"""`notify=` of a search, by the command that searches: of other runs their own scripts tell (`notify.sh`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_launcher import records
from launcher.runs import store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import Seen

TELLING = 20.0
"""Seconds that the command has, as in `notify.sh`."""


def tell_of_search(sweep: str, seen: Sequence[Seen]) -> None:
    """Tell of the end of a search, whose trials these are; again where it was continued by further ones."""
    counts = Counter(row.state.name for row in seen)
    told = {
        "schema": 1,
        "event": "ended",
        "text": f"{sweep}: {', '.join(f'{count} {name}' for name, count in counts.items())}",
        "sweep": sweep,
        "runs": list(map(_summary, seen)),
    }
    for last in seen[-1:]:
        plan = store.read(PlanRecord, last.run.folder / "plan.json", ("notify", "secrets"))
        notice = last.run.folder / "attempts" / str(last.state.attempt or 1) / "told-ended.json"
        if plan.notify and not notice.exists():
            text = json.dumps(told, indent=1)
            for secret in _secrets(plan):
                text = text.replace(json.dumps(secret)[1:-1], "***")
            notice.parent.mkdir(exist_ok=True, mode=0o700)
            store.write_text(notice, f"{text}\n", records.record)
            _start(plan, notice)


def _start(plan: PlanRecord, notice: Path) -> None:
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
        "result": store.read_or_empty(row.run.folder / "result.json") or None,
    }
