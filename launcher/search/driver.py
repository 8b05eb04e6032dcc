"""Asks for trials as others end, follows them, and tells the study how they ended."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import units
from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.executors import backends, execute, interrupts, notices, stopping, submission
from launcher.runs import run_ids, selection
from launcher.runs.schema import ResultRecord
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.search.job import SearchJob
from launcher.search.study import Study
from launcher.search.trials import Trial
from launcher.ui import summary, sweep_table, tables
from launcher.ui.display import Display, Row, moves_cursor

EVERY = 1.0
"""Seconds between two looks at the trials."""
HOPELESS = 3
"""Trials that fail, with none done, before no more are asked for."""
DIGITS = 1000
"""A trial's number has as many digits as a cell's in a sweep of so many, even if more trials follow."""


class Driver:
    """Fills the free slots with trials, and tells the study how each ended."""

    def __init__(
        self, root: Path, sweep: str, job: SearchJob, study: Study, came_from: Mapping[str, Any] | None
    ) -> None:
        self._root, self._sweep, self._job, self._study = root, sweep, job, study
        facts = next(iter(job.facts.values()))
        self._files = {job.code: facts.code.paths} if facts.code.digest == job.code else None
        self._came_from = came_from
        self._code = facts.code
        self._open: dict[int, Trial] = {}
        self._waiting: dict[int, dict[str, str]] = dict(study.open_trials())
        """Trials without a run yet."""
        self._waits = -1
        """The last of them of which it was said that it waits."""
        self._rows: dict[int, Row] = {}
        self._failed = 0
        self.problem: LauncherError | None = None
        """Why no more trials are asked for; None while they are."""

    def run(self, display: Display) -> bool:
        """Search to the end, or until Ctrl-C. Returns whether it came to the end."""
        self._take_up()
        print(
            f"{self._sweep}  search of {self._job.how.trials} trials by {self._job.metric}, "
            f"{'lowest' if self._job.lowest else 'highest'} first, {self._job.at_once} at once\n"
            f"searched: {'; '.join(self._job.space.described())}",
            flush=True,
        )
        while True:
            self._look(display)
            self._ask(display)
            display.show(list(self._rows.values()))
            if not self._open and (self.problem or not self._waiting):
                break
            until = time.monotonic() + EVERY
            while time.monotonic() < until and not interrupts.noted():
                time.sleep(0.05)
            if interrupts.noted():
                self._leave()
                return False
        if self.problem is None and self._study.best() is None:
            self.problem = LauncherError(f"no trial of {self._name} has measured {self._job.metric}")
        notices.tell_of_search(self._sweep, backends.states_of(selection.sweep_runs(str(self._root), self._sweep)))
        return True

    def _take_up(self) -> None:
        """Find the runs of trials that a search which is gone asked for."""
        for number in list(self._waiting):
            run = self._run(number)
            if not run.folder.exists():
                continue
            (seen,) = backends.states_of([run], fresh=True)
            if seen.state.name == "lost" and not seen.state.attempt:  # killed before it was handed over
                execute.discard(run.folder)
                continue
            del self._waiting[number]
            self._follow(number)

    def _run(self, number: int) -> Run:
        return Run(str(self._root), run_ids.cell_id(self._sweep, number, DIGITS))

    def _look(self, display: Display) -> None:
        seen = backends.states_of([trial.run for trial in self._open.values()])
        backends.settle(seen)
        worse: dict[int, int] = {}
        ended: list[tuple[Trial, State]] = []
        for row, trial in zip(seen, list(self._open.values()), strict=True):
            trial.shown.state = row.state
            if row.state.attempt:
                trial.shown.read()
            (self._rows[trial.number],) = trial.shown.rows()
            if row.state.finished:
                ended.append((trial, row.state))
                continue
            for step, value in trial.new_values():
                self._study.report(trial.number, step, value)
                if self._study.is_worse(trial.number, step):
                    worse[trial.number] = step
                    break
        for trial, state in ended:
            self._tell(trial, state, display)
        if ended and not self._open and all(state.name == "cancelled" for _, state in ended):
            self.problem = LauncherError(
                f"the trials of {self._name} were cancelled, so no more are asked for; "
                f"`resume {self._name}` continues it"
            )
        if worse:
            self._prune(worse, display)

    def _tell(self, trial: Trial, state: State, display: Display) -> None:
        del self._open[trial.number]
        result = summary.result_of(trial.run.folder, state)
        value = trial.value(result) if state.name == "done" else None
        diverged = state.name == "failed" or (state.name == "done" and value is None and bool(result.nonfinite))
        for step, measured in trial.new_values():
            self._study.report(trial.number, step, measured)
        self._study.tell(trial.number, value, pruned=diverged)
        best = self._study.best()
        reason = state.reason
        if value is not None:
            is_best = ", the best so far" if best and best[0] == trial.number else ""
            reason = f"{self._job.metric} {units.number(value)}{is_best}"
        self._end(trial.number, state._replace(reason=reason), display)
        if state.name == "done" and value is None and not diverged and best is None:
            self._never_comes(trial, result)
        self._failed += state.name == "failed"
        if self._failed >= HOPELESS and best is None and self.problem is None:
            self.problem = LauncherError(f"{self._failed} trials failed and none is done; the last: {state.reason}")

    def _end(self, number: int, state: State, display: Display) -> None:
        """Show how a trial ended; a screen, whose table has no reasons, says how the search stands."""
        self._rows[number] = self._rows[number]._replace(state=state)
        if moves_cursor(sys.stdout):
            best = self._study.best()
            so_far = f"; best {best[0]:03d}: {self._job.metric} {units.number(best[1])}" if best else ""
            display.say(f"{self._study.asked - len(self._open)} of {self._job.how.trials} trials have ended{so_far}")

    def _never_comes(self, trial: Trial, result: ResultRecord) -> None:
        """A trial is done and has not measured it, so no other will: end the search."""
        names = ", ".join(sweep_table.measures(result)) or "nothing"
        self.problem = UsageError(
            f"search.metric={self._job.metric} never came: {trial.run.id} is done, and has measured {names}; no more "
            "trials are asked for"
        )
        stopping.cancel([other.run for other in self._open.values()], now=True)

    def _prune(self, worse: Mapping[int, int], display: Display) -> None:
        trials = {trial.run: trial for number, trial in self._open.items() if number in worse}
        for row, _ in stopping.cancel(list(trials), now=True):
            trial = trials[row.run]
            if row.state.name == "done":  # meanwhile
                self._tell(trial, row.state, display)
                continue
            del self._open[trial.number]
            step = worse[trial.number]
            self._study.tell(trial.number, None, pruned=True)
            reason = f"pruned at step {step}, where most were better"
            self._end(trial.number, self._rows[trial.number].state._replace(name="cancelled", reason=reason), display)

    def _ask(self, display: Display) -> None:
        """Fill the free slots."""
        while len(self._open) < self._job.at_once and self.problem is None and not interrupts.noted():
            if not self._waiting:
                if self._study.asked >= self._job.how.trials:
                    return
                self._waiting = dict([self._study.ask()])
            number, texts = next(iter(self._waiting.items()))
            try:
                self._submit(number, texts)
            except KeyboardInterrupt:  # noted before it was made
                return
            except LauncherError as error:
                if self._run(number).folder.exists():  # it may have been handed over
                    display.say(f"{number:03d}: {error}")
                    self._follow(number)
                elif isinstance(error, Unavailable) and self._open:  # as while its GPUs are taken
                    if self._waits != number:
                        display.say(f"{number:03d} waits: {error}")
                    self._waits = number
                    return
                elif isinstance(error, UsageError) and (self._open or self._study.best()):
                    display.say(f"{number:03d} was refused: {error}")
                    self._study.tell(number, None)
                else:
                    raise
            del self._waiting[number]

    def _submit(self, number: int, texts: Mapping[str, str]) -> None:
        run = self._run(number)
        plan = self._job.plan(texts).at(run.path)
        if self._came_from is None:
            self._came_from = execute.provenance(plan, self._code)
        submission.submit([plan], self._came_from, code=self._files)
        self._follow(number)

    def _follow(self, number: int) -> None:
        self._open[number] = trial = Trial(number, self._run(number), self._job.metric)
        (self._rows[number],) = trial.shown.rows()

    @property
    def _name(self) -> str:
        return run_ids.words_of(self._sweep)

    def _leave(self) -> None:
        count = len(self._open)
        runs = f"{count} trial{'s' * (count != 1)} run{'s' * (count == 1)} on"
        print(
            f"\n{runs}; `resume {self._name}` continues the search, `cancel {self._name}` ends what runs",
            file=sys.stderr,
        )

    def last_words(self) -> Iterator[str]:
        """The trials, best first, and what repeats the best."""
        now = time.time()
        rows = sweep_table.cells(backends.states_of(selection.sweep_runs(str(self._root), self._sweep)), now)
        if not rows:
            return
        with contextlib.suppress(UsageError):  # none has measured it
            rows = sweep_table.best_first(rows, self._job.metric, lowest=self._job.lowest)
        yield from sweep_table.lines(rows, tables.width_of(sys.stdout), rows, now)
        if (best := self._study.best()) is not None:
            number, value, texts = best
            again = shlex.join(self._job.again(texts))
            name = f"{number:03d}, {self._job.metric} {units.number(value)}"
            yield from tables.pairs([("best", name), ("again", f"python -m launcher {again}")], 0)
