"""The end of the log that explains why a run failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from launcher.runs import follow, run_roots, store
from launcher.runs.schema import Failed, PlanRecord

LINES = 10
LONGEST_REPORT = 1000
"""Lines that torchrun's own report may take at the end of a log."""
_TORCHRUN = re.compile(r"[EWI]\d{4} .* torch/distributed/|\[.*\] torch\.distributed\.(?:elastic|run)")


def read(folder: Path, attempt: int = 0, count: int = LINES) -> tuple[Path | str, list[str]]:
    """The most telling log of a failed run and its last lines: stderr, else stdout, else the launch log."""
    if run_roots.is_remote(str(folder.parent)):
        from launcher.runs import remote_record

        known = remote_record.known(folder)
        log = known.log if known else None
        return (log[0], list(log[1])) if log else (remote_record.place(folder), [])
    number = attempt or max(store.attempts(folder), default=0)
    candidates = [folder / "attempts" / str(number) / name for name in ("stderr.log", "stdout.log")]
    first = store.read(Failed, folder / "attempts" / str(number) / "failed.json")
    plan = store.read(PlanRecord, folder / "plan.json", ("processes", "nodes"))
    if first.trace and any(count not in (None, 1) for count in (plan.processes, plan.nodes)):
        # The log ends with the message of the last rank, which failed because the first one had gone.
        return f"the traceback of rank {first.rank or 0}", first.trace.splitlines()[-count:]
    for path in (*candidates, folder / "launch.log"):
        if lines := without_torchrun_report(follow.tail(path, count + LONGEST_REPORT)):
            return path, lines[-count:]
    return candidates[0], []


def without_torchrun_report(lines: Iterable[str]) -> list[str]:
    """Without torchrun's report of each worker that failed, which hides the worker's own message above it. Reports of
    several nodes may be interleaved."""
    kept, rulers = [], 0
    for line in lines:
        if _TORCHRUN.match(line):
            # The report of a worker that failed ends at its second double ruler.
            rulers += 2 if " failed (exitcode: " in line else 0
        elif not rulers:
            kept.append(line)
        elif line and not line.strip("="):
            rulers -= 1
    return kept
