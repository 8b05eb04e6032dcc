"""`down`: end what `up` started."""

from __future__ import annotations

from launcher.commands.arguments import Parser, chosen
from launcher.commands.cancel import end
from launcher.errors import UsageError
from launcher.runs import selection, store
from launcher.runs.schema import PlanRecord
from launcher.runs.store import Run


def main(arguments: list[str]) -> int:
    parser = Parser("down", "RUN ...", "End interactive containers and allocations that `up` started.")
    _, names, roots = parser.read(arguments)
    if not names:
        there = [run.id for run in selection.unfinished(roots) if _is_up(run)]
        raise UsageError(f"down needs the name of a RUN; {'up: ' + ', '.join(there) if there else 'none is up'}")
    runs = chosen(names, roots)
    for run in runs:
        if not _is_up(run):
            raise UsageError(f"{run.id} was not started by up; `cancel {run.id}` ends it")
    return end("down", runs)


def _is_up(run: Run) -> bool:
    return store.read(PlanRecord, store.plan_path(run.folder), ("up",)).up is True
