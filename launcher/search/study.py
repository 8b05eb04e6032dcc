"""optuna's study of a search, in a journal in the folder of the sweep."""

from __future__ import annotations

import contextlib
import logging
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_launcher import records
from launcher.errors import UsageError
from launcher.runs import run_roots
from launcher.search.space import Space

JOURNAL = "optuna.journal"
NAME = "search"
"""Of the study in its journal."""
BEGINNING = 0.25
"""Share of the steps of those that are done."""


class Study:
    """The trials so far, by their numbers from 0, and those that come next. One process at a time has it."""

    def __init__(self, folder: Path, space: Space, *, lowest: bool, prune: bool) -> None:
        """Open the study in that folder, or begin it. Raises `UsageError` where another process has it."""
        optuna = library()
        self._optuna, self._space = optuna, space
        self._held = contextlib.ExitStack()
        try:
            self._held.enter_context(run_roots.locked(folder / "lock", wait=False))
        except BlockingIOError:
            raise UsageError(
                f"{folder.name} is being searched by another process; `watch {folder.name}` follows it"
            ) from None
        path = folder / JOURNAL
        _repair(path)
        self._storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=NAME,
            load_if_exists=True,
            direction="minimize" if lowest else "maximize",
            sampler=optuna.samplers.TPESampler(),
            pruner=optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner(),
        )
        self._distributions = {key: self._distribution(key) for key in space.searched}
        self._trials: dict[int, Any] = {}
        self._steps: dict[int, set[int]] = {}
        """Those that each trial has reported."""

    def close(self) -> None:
        self._held.close()

    def _distribution(self, key: str) -> Any:
        of = self._optuna.distributions
        if key in self._space.choices:
            return of.CategoricalDistribution(self._space.choices[key])
        interval = self._space.intervals[key]
        if interval.whole:
            return of.IntDistribution(int(interval.low), int(interval.high), log=interval.log)
        return of.FloatDistribution(float(interval.low), float(interval.high), log=interval.log)

    def ask(self) -> tuple[int, dict[str, str]]:
        """A new trial: its number, and the text of each searched key."""
        trial = self._study.ask(self._distributions)
        self._trials[trial.number] = trial
        return trial.number, self._texts(trial.params)

    def open_trials(self) -> list[tuple[int, dict[str, str]]]:
        """Trials that were asked for, here or by a process that is gone, and are not told yet."""
        found = self._complete(self._optuna.trial.TrialState.RUNNING)
        for trial in found:
            if trial.number not in self._trials:
                storage = self._storage
                study = storage.get_study_id_from_name(NAME)
                known = storage.get_trial_id_from_study_id_trial_number(study, trial.number)
                self._trials[trial.number] = self._optuna.trial.Trial(self._study, known)
                self._steps[trial.number] = set(trial.intermediate_values)
        return [(trial.number, self._texts(trial.params)) for trial in found]

    def _complete(self, *states: Any) -> list[Any]:
        """Trials in one of these states, or all. One whose asking was killed halfway has not all values, and no run."""
        found = self._study.get_trials(deepcopy=False, states=states or None)
        return [trial for trial in found if trial.params.keys() == self._distributions.keys()]

    def _texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        intervals = self._space.intervals
        return {key: intervals[key].text(value) if key in intervals else value for key, value in values.items()}

    @property
    def asked(self) -> int:
        """Trials so far, those that have ended in whatever way included."""
        return len(self._complete())

    def report(self, number: int, step: int, value: float) -> None:
        """What a trial measured on its way; a step that it has had, as its rows are read again, says nothing new."""
        seen = self._steps.setdefault(number, set())
        if step not in seen:
            seen.add(step)
            self._trials[number].report(value, step)

    def is_worse(self, number: int, step: int) -> bool:
        """Whether the trial is worse than most were at this step, its last. Its beginning, which says little, is not
        judged."""
        done = self._complete(self._optuna.trial.TrialState.COMPLETE)
        lengths = [trial.last_step for trial in done if trial.last_step is not None]
        if not lengths or step < BEGINNING * statistics.median(lengths):
            return False
        return bool(self._trials[number].should_prune())

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        """How a trial ended: with a value, as `pruned`, or with neither, from which nothing is learned."""
        states = self._optuna.trial.TrialState
        if value is not None:
            self._study.tell(self._trials[number], value)
        else:
            self._study.tell(self._trials[number], state=states.PRUNED if pruned else states.FAIL)

    def best(self) -> tuple[int, float, dict[str, str]] | None:
        """The best trial: number, value, texts of its keys. None where none is done."""
        if not self._complete(self._optuna.trial.TrialState.COMPLETE):
            return None
        trial = self._study.best_trial
        return trial.number, float(trial.value), self._texts(trial.params)


def library() -> Any:
    """optuna. Raises `UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError("search=optuna needs its package: pip install 'amp-launcher[search]'") from None
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _repair(path: Path) -> None:
    """Repair a journal whose writer was killed: cut off a half line at its end, and remove its lock."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    with open(path, "a+b", opener=records.private) as journal:
        journal.seek(0)
        text = journal.read()
        journal.truncate(text.rfind(b"\n") + 1)
