"""A search from its words, or continued from its folder."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from amp_launcher.typed import SettingsError, build, plain
from launcher.code import code_store
from launcher.compare import experiments
from launcher.config.parse import own_settings
from launcher.config.paths import add_own_recipes
from launcher.config.request import Words
from launcher.errors import TYPED, LauncherError, UsageError, of_system
from launcher.executors import interrupts
from launcher.runs import run_ids, selection, store
from launcher.search import PREFIX
from launcher.search import space as spaces
from launcher.search.driver import Driver
from launcher.search.job import SearchJob, any_values
from launcher.search.job import plan as job_of
from launcher.search.space import Search
from launcher.search.study import Study
from launcher.ui.display import for_stream


def start(words: Words, arguments: Sequence[str]) -> int:
    """Search from the beginning. Returns the exit code. Raises `LauncherError`, and then nothing is left unless trials
    run already."""
    if words.cfg:
        raise UsageError("--cfg job shows the configuration of jobs that are known; say values instead of a search")
    how, space = spaces.split(words)
    one = dataclasses.replace(words, overrides=space.with_values(any_values(space)))
    if experiments.requested(one) is not None:
        raise UsageError("an experiment with arms is a comparison of these, and no job to search for")
    job = job_of(words, how, space, tuple(arguments))
    plan = job.plan(any_values(job.space))
    root = Path(plan.run_root)
    sweep = run_ids.new_id(time.time())
    try:
        store.make_root(root, shared=plan.shared is not None)
        folder = store.search_folder(str(root), sweep)
        store.make_common(folder.parent)
        store.make_folder(folder, shared=plan.shared is not None)
    except OSError as error:
        raise UsageError(f"run_root={root}: {of_system(error)}") from None
    try:
        return _search(root, sweep, job)
    except BaseException:
        if not selection.sweep_runs(str(root), sweep):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def go_on(root: str, sweep: str, assignments: Mapping[str, str]) -> int:
    """Continue a search from its folder; `search.trials` and `search.parallel` may change. Returns the exit code.
    Raises `LauncherError`."""
    folder = store.search_folder(root, sweep)
    try:
        record = store.read_json(folder / store.SEARCH, own_in=root) or {}
        words = Words(
            overrides=tuple(record["words"]),
            arguments=None if record["arguments"] is None else tuple(record["arguments"]),
            config_dirs=tuple(map(Path, record["config_dirs"])),
        )
        for own in words.config_dirs:
            add_own_recipes(own)
        cwd, code, command = str(record["cwd"]), str(record["code"]), tuple(map(str, record["command"]))
        how = build(Search, record["search"], prefix=PREFIX)
    except (store.Damaged, KeyError, TypeError, SettingsError) as error:
        raise UsageError(f"the search {sweep} can't be continued: {folder / store.SEARCH}: {error}") from None
    changed, others = own_settings([f"{key}={value}" for key, value in assignments.items()], PREFIX, Search)
    if refused := [*others, *(f"{PREFIX}{name}" for name in changed if name not in ("trials", "parallel"))]:
        raise UsageError(
            f"{refused[0]}: a search continues with the words that it began with; search.trials and "
            f"search.parallel may change{TYPED}"
        )
    how = dataclasses.replace(how, **changed)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UsageError(f"the search {sweep} began in {cwd}: {error.strerror}") from None
    job = job_of(words, how, spaces.split(words)[1], command)
    came_from = None
    if job.code != code:
        if not code_store.is_there(Path(job.plan(any_values(job.space)).code_dir).parent, code):
            raise UsageError(f"the code that {sweep} began with is gone from {root}; start another search")
        print("note: the code was edited since; trials run it as it was when the search began", file=sys.stderr)
        first = next(iter(selection.sweep_runs(root, sweep)), None)
        came_from = store.read_or_empty(first.folder / "provenance.json", own_in=root) if first else None
        job = dataclasses.replace(job, code=code)
    return _search(Path(root), sweep, job, came_from)


def _write(folder: Path, job: SearchJob) -> None:
    """What continues the search, and what listings order its runs by."""
    record = {
        "schema": 1,
        "metric": job.metric,
        "lowest": job.lowest,
        "search": plain(job.how),
        "words": list(job.words.overrides),
        "arguments": None if job.words.arguments is None else list(job.words.arguments),
        "config_dirs": [str(path.resolve()) for path in job.words.config_dirs],
        "command": list(job.command),
        "cwd": os.getcwd(),
        "code": job.code,
    }
    store.write_json(folder / store.SEARCH, record)


def _search(root: Path, sweep: str, job: SearchJob, came_from: Mapping[str, Any] | None = None) -> int:
    folder = store.search_folder(str(root), sweep)
    with closing(Study(folder, job.space, lowest=job.lowest, prune=job.how.prune)) as study:
        if study.asked >= job.how.trials and not study.open_trials():
            raise UsageError(f"{sweep} has had its {study.asked} trials; say search.trials=N for more{TYPED}")
        _write(folder, job)
        driver = Driver(root, sweep, job, study, came_from)
        try:
            with interrupts.held(), closing(for_stream(sys.stdout)) as display:
                finished = driver.run(display)
        except LauncherError as error:
            if not selection.sweep_runs(str(root), sweep):
                raise
            raise type(error)(f"{error}; `resume {run_ids.words_of(sweep)}` continues the search") from None
        if not finished:
            return 130
        for line in driver.last_words():
            print(line)
        if driver.problem is not None:
            raise driver.problem
        return 0
