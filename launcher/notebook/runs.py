"""Runs that show themselves: as text, and in a notebook as a table and as the page of a report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from launcher.errors import LauncherError, of_program
from launcher.executors import backends, stopping
from launcher.notebook.page import Page
from launcher.report.markup import join, tag
from launcher.runs import arms, follow, run_ids, store
from launcher.runs.schema import PlanRecord
from launcher.runs.selection import Selection
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ui import sweep_table, tables
from launcher.ui.progress import json_row

if TYPE_CHECKING:
    from launcher.executors.job import RunJob

EVERY = 1.0
"""Seconds between two looks while runs are waited for."""


class LaunchedRun:
    """One run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def folder(self) -> Path:
        """The run folder, or the copies of its small files where it is on another host."""
        return self._run.folder

    @property
    def state(self) -> str:
        """queued, running, stopping, done, stopped, cancelled, failed, lost ..."""
        return _look([self._run])[0].state.name

    @property
    def job(self) -> RunJob:
        """The run as submitit's `Job`."""
        from launcher.executors.job import RunJob

        return RunJob(self.folder)

    def metrics(self) -> list[dict[str, Any]]:
        """A record for each step so far, as `pandas.DataFrame` and `polars.DataFrame` take them; of a comparison those
        of all arms, each with its `arm`."""
        _look([self._run])
        compared = arms.of(self.folder, _plan(self._run))
        return [{"arm": arm.label, **row} for arm in compared for row in _steps(arm.run)] or _steps(self._run)

    def result(self) -> dict[str, Any]:
        """The content of result.json, empty before the run has one."""
        _look([self._run])
        return store.read_or_empty(self.folder / "result.json")

    def report(self) -> Page:
        return Runs([self._run]).report()

    def __repr__(self) -> str:
        return repr(Runs([self._run]))

    def _repr_html_(self) -> str:
        return Runs([self._run])._repr_html_()


class Runs(Sequence[LaunchedRun]):
    """Runs in the order in which they were submitted."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> LaunchedRun: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> LaunchedRun | Runs:
        return Runs(self._runs[index]) if isinstance(index, slice) else LaunchedRun(self._runs[index])

    def wait(self, timeout: float | None = None) -> None:
        """Return when all runs have ended, however they ended; in a notebook their table is shown meanwhile.

        Raises `LauncherError` after `timeout` seconds.
        """
        show = _display()
        shown = show(self, display_id=True) if show else None
        until = None if timeout is None else time.monotonic() + timeout
        while unfinished := [entry for entry in _look(self._runs) if not entry.state.finished]:
            if until is not None and time.monotonic() >= until:
                raise LauncherError(f"{len(unfinished)} of {len(self)} runs have not ended after {timeout:g} s")
            time.sleep(EVERY)
            if shown:
                shown.update(self)
        if shown:
            shown.update(self)

    def cancel(self) -> None:
        """Ask the runs to save and stop, and kill those that do not; returns when they have ended."""
        with of_program():
            ended = stopping.cancel(self._runs)
        if left := [f"{one.seen.run.id} could not be cancelled: {one.why_not}" for one in ended if one.why_not]:
            raise LauncherError("\n".join(left))

    def report(self) -> Page:
        """The report of these runs: `display` it, `print` it, or `save` it as a page."""
        from launcher.compare import documents

        with of_program():
            _look(self._runs)
            sweeps = {run_ids.sweep_of(run.id) for run in self._runs}
            named = [Selection(sweep, self._runs) for sweep in sweeps] if len(sweeps) == 1 < len(self) else []
            return Page(documents.of(named or [Selection(None, (run,)) for run in self._runs], self._runs))

    def compare(self) -> Page:
        """What these runs differ in: results side by side, and of two runs their code too; of a comparison its arms.
        Raises `LauncherError` for a single run."""
        if len(self) < 2 and not any(_plan(run).arms for run in self._runs):
            raise LauncherError(
                "compare needs two runs or more: runs.compare() of a sweep, or find(RUN, RUN).compare()"
            )
        return self.report()

    def __repr__(self) -> str:
        rows, now = self._rows(), time.time()
        return "\n".join(sweep_table.lines(rows, tables.width_of(sys.stdout), rows, now)) if rows else "no runs"

    def _repr_html_(self) -> str:
        rows, now = self._rows(), time.time()
        if not rows:
            return tag("p", "no runs")
        columns = sweep_table.columns(rows, rows)
        align = [f"text-align: {'right' if column.right else 'left'}" for column in columns]
        header = [
            tag("th", tables.clean(column.name.lower()), style=style)
            for column, style in zip(columns, align, strict=True)
        ]
        body = [
            tag(
                "tr",
                join([tag("td", tables.clean(cell), style=style) for cell, style in zip(cells, align, strict=True)]),
            )
            for cells in zip(*(column.cells for column in columns), strict=True)
        ]
        notes = [tag("div", note) for note in sweep_table.notes(rows, rows, now)]
        table = tag("table", tag("thead", tag("tr", join(header))), tag("tbody", join(body)))
        return tag("div", table, join(notes))

    def _rows(self) -> list[sweep_table.Cell]:
        return sweep_table.cells(_look(self._runs), time.time())


def _look(runs: Sequence[Run]) -> list[Seen]:
    """The states of runs, with the metrics so far of those on other hosts."""
    with of_program():
        seen = backends.states_of(runs, follow=True)
        backends.settle(seen)
    return seen


def _plan(run: Run) -> PlanRecord:
    return store.read(PlanRecord, store.plan_path(run.path))


def _steps(run: Run) -> list[dict[str, Any]]:
    _, lines = follow.Lines(run.folder / "metrics.jsonl").read()
    return [row for row in map(json_row, lines) if "step" in row and "event" not in row]


def _display() -> Callable[..., Any] | None:
    """What shows a value in the notebook that this runs in; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    display: Callable[..., Any] = ipython.display.display
    return display
