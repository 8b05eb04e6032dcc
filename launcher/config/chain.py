"""A chain's file: jobs by name, each with the words that one would type and the jobs that it needs.

prepare:
  words: cmd -- ./prepare.sh data/
train:
  needs: prepare
  words: train.py amp=o2 -- --data data/
"""

from __future__ import annotations

import graphlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.typed import nearest
from launcher.config import files
from launcher.config.files import SourceLine, refused
from launcher.errors import UsageError

_KEYS = ("words", "needs")
_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")
ANY = "any:"
"""Before the name of a job that may end however it does."""


class Job(NamedTuple):
    """One job of a chain."""

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...]
    """Names of jobs of the same chain, with `any:` before one that may end however it does."""
    place: str
    """Where its words stand, as FILE:LINE."""


def read(path: Path) -> list[Job]:
    """The jobs of the file, each behind those that it needs. Raises `UsageError` with file and line."""
    values, places = files.read(path), files.places(path)
    if not values:
        raise refused(path, None, "a chain's file names jobs, as `prepare: {words: cmd -- ./prepare.sh}`")
    jobs = {name: _job(path, name, value, places) for name, value in values.items()}
    for job in jobs.values():
        for index, need in enumerate(job.needs):
            if (name := need.removeprefix(ANY)) not in jobs:
                near = nearest(name, jobs) or f" (jobs: {', '.join(jobs)})"
                raise UsageError(f"{_of_need(job, index, places)}: {job.name} needs {name}, which is no job here{near}")
    return _in_order(jobs, places)


def _job(path: Path, name: str, value: Any, places: Mapping[str, SourceLine]) -> Job:
    line = places[name].line
    if not _NAME.fullmatch(name):
        raise refused(path, line, f"{name} is no name for a job: say up to 64 letters, digits, - and _, a letter first")
    if not isinstance(value, dict):
        raise refused(path, line, f"{name} should be a mapping: `{name}: {{words: train.py amp=o2, needs: prepare}}`")
    for key in value:
        if key not in _KEYS:
            known = nearest(key, _KEYS) or f" (keys: {', '.join(_KEYS)})"
            raise refused(path, places[f"{name}.{key}"].line, f"{key} is no key of a job{known}")
    if not value.get("words"):
        raise refused(path, line, f"{name} has no words: say what one would type, as `words: train.py amp=o2`")
    needs = _texts(path, f"{name}.needs", value.get("needs"), places)
    return Job(name, tuple(_words(path, name, value["words"], places)), tuple(needs), f"{places[f'{name}.words']}")


def _words(path: Path, name: str, value: Any, places: Mapping[str, SourceLine]) -> list[str]:
    if isinstance(value, (list, dict)):
        return _texts(path, f"{name}.words", value, places)
    place = places[f"{name}.words"]
    try:
        return shlex.split(place.text)
    except ValueError as error:
        raise refused(path, place.line, f"the words of {name} can't be split as a shell does: {error}") from None


def _texts(path: Path, key: str, value: Any, places: Mapping[str, SourceLine]) -> list[str]:
    """One text, or a list of them, as they are written: YAML reads 0.10 as a number."""
    if value is None:
        return []
    if not isinstance(value, list):
        value, keys = [value], [key]
    else:
        keys = [f"{key}[{index}]" for index in range(len(value))]
    for item, at in zip(value, keys, strict=True):
        if isinstance(item, (dict, list)):
            raise refused(path, places[at].line, f"{key} should be a text or a list of texts")
    return [places[at].text for at in keys]


def _in_order(jobs: Mapping[str, Job], places: Mapping[str, SourceLine]) -> list[Job]:
    """The jobs, each behind those that it needs, otherwise as in the file. Raises `UsageError` for a circle."""
    needs = {job.name: [need.removeprefix(ANY) for need in job.needs] for job in jobs.values()}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        *_, last, first = circle = error.args[1][::-1]
        place = _of_need(jobs[last], needs[last].index(first), places)
        raise UsageError(f"{place}: the jobs need each other: {' needs '.join(circle)}") from None
    ordered: dict[str, Job] = {}
    while rest := [job for job in jobs.values() if job.name not in ordered]:
        ready = next(job for job in rest if ordered.keys() >= set(needs[job.name]))
        ordered[ready.name] = ready
    return list(ordered.values())


def _of_need(job: Job, index: int, places: Mapping[str, SourceLine]) -> SourceLine:
    return places.get(f"{job.name}.needs[{index}]") or places[f"{job.name}.needs"]
