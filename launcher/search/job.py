"""What all trials of a search have in common, and the plan of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.config.request import Words
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.executors import planning
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.search import space as spaces
from launcher.search.space import Search, Space
from launcher.search.study import library
from launcher.ssh.probe_client import runtime
from launcher.ui import sweep_table

AT_ONCE = {"local": 1, "slurm": 4}
"""Trials that run at once where nothing is said, by the kind of cluster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchJob:
    """What is fixed for all trials."""

    words: Words
    how: Search
    space: Space
    command: tuple[str, ...]
    """The words as they were typed."""
    specs: Sequence[JobSpec]
    """The jobs at the ends of the intervals."""
    facts: Mapping[Any, Facts]
    """Of the host, by what a trial runs in."""
    code: str
    """Digest of the code that all trials run."""

    @property
    def metric(self) -> str:
        return str(self.how.metric)

    @property
    def lowest(self) -> bool:
        return sweep_table.low_is_good(self.metric) if self.how.best == "auto" else self.how.best == "lowest"

    @property
    def at_once(self) -> int:
        return self.how.parallel or AT_ONCE[self.specs[0].launch.cluster.kind]

    def plan(self, texts: Mapping[str, str]) -> Plan:
        """The plan of the trial with these values. Raises `LauncherError`."""
        (spec,) = spaces.specs(self.space, self.words, texts)
        facts = self.facts.get(runtime(spec))
        if facts is None:
            raise UsageError("its Python, container or image was not looked at when the search began")
        return dataclasses.replace(resolve(spec, facts), command=self.command, code=self.code)

    def again(self, texts: Mapping[str, str]) -> list[str]:
        """The words that repeat the trial with these values, without those that its level has no use for."""
        (spec,) = spaces.specs(self.space, self.words, texts)
        idle = {*self.space.with_values(texts)} - {*spec.command}
        return [word for word in spaces.repeated(self.command, texts) if word not in idle]


def plan(words: Words, how: Search, space: Space, command: tuple[str, ...]) -> SearchJob:
    """What the words ask for, planned at both ends of each interval. Raises `LauncherError` for what is wrong."""
    typed, specs = spaces.ends(space, words, how)
    library()
    plans, facts = planning.plan_each(specs)
    known = {runtime(spec): of_host for spec, of_host in zip(specs, facts, strict=True)}
    return SearchJob(words=words, how=how, space=typed, command=command, specs=specs, facts=known, code=plans[0].code)


def any_values(space: Space) -> dict[str, str]:
    """Some values of all keys."""
    low = {key: interval.low for key, interval in space.intervals.items()}
    return {**low, **{key: texts[0] for key, texts in space.choices.items()}}
