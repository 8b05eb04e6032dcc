"""`ls KEY=VALUE`: which runs have the values that a person names."""

from __future__ import annotations

import fnmatch
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_launcher.shown import show
from launcher.errors import UsageError
from launcher.runs import store
from launcher.runs.states import Name, Seen
from launcher.runs.store import Run

AT_ONCE = 200
"""Runs that are looked at together."""
_PART = "level", "kind", "mode"
"""What a group of keys means where one value is asked of it, as `amp=o2` means `amp.level=o2`."""
_OWN = "state", "name", "date"
"""Keys that a run has beside those of its plan."""
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")


class Filter:
    """The values that runs are to have: each key one of its values."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words` are `KEY=VALUE[,VALUE]`. Raises `UsageError`."""
        self.words = tuple(words)
        self._wanted = {key: value.split(",") for key, _, value in (word.partition("=") for word in words)}
        self._states = self._wanted.pop("state", None)
        self._dates = [_span(date) for date in self._wanted.pop("date", ())]
        self._keys: set[str] = set()
        """Those that any run has that was looked at."""
        self._unmet = set(self._wanted)
        """Keys that no run has had so far."""
        for word in words:
            if word.endswith("="):
                raise UsageError(f"ls: {word} has no value; tf32=null is a setting without one")
        for state in self._states or ():
            if state not in typing.get_args(Name):
                from amp_launcher.typed import nearest

                choices = typing.get_args(Name)
                raise UsageError(f"ls: state={state} is not one of {', '.join(choices)}{nearest(state, choices)}")

    def select(
        self, runs: Sequence[Run], states_of: Callable[[Sequence[Run]], list[Seen]], most: int | None
    ) -> list[Seen]:
        """The first `most` of them that match, or all. Raises `UsageError` for a key that no run has."""
        found: list[Seen] = []
        dated = [run for run in runs if self._is_of_date(run.id)]
        for start in range(0, len(dated), AT_ONCE):
            chosen = [run for run in dated[start : start + AT_ONCE] if self._has_values(run)]
            found += [seen for seen in states_of(chosen) if self._states is None or seen.state.name in self._states]
            if most is not None and len(found) > most:
                break
        if self._keys and self._unmet and not found:
            from amp_launcher.typed import nearest

            key = min(self._unmet)
            raise UsageError(f"ls: no run has a key {key}{nearest(key, {*self._keys, *_OWN})} (or {', '.join(_OWN)})")
        return found if most is None else found[: most + 1]

    def _is_of_date(self, run: str) -> bool:
        return not self._dates or any(first <= run[: len("YYYYMMDD")] <= last for first, last in self._dates)

    def _has_values(self, run: Run) -> bool:
        if not self._wanted:
            return True
        values = dict(_values(store.read_or_empty(store.plan_path(run.path))))
        self._keys.update(values)
        matches = True
        for key, wanted in self._wanted.items():
            full = next((name for name in (key, *(f"{key}.{part}" for part in _PART)) if name in values), None)
            if full is not None:
                self._unmet.discard(key)
            matches &= full is not None and any(_is(values[full], text) for text in wanted)
        return matches


def _span(text: str) -> tuple[str, str]:
    """The first and the last day of `2026-11-27`, `2026-11`, `2026-11-20..2026-11-27`, `2026-11-20..`. Raises
    `UsageError`."""
    first, dots, last = text.partition("..")
    last = last if dots else first
    if not (first or last) or any(end and not _DATE.fullmatch(end) for end in (first, last)):
        example = "as 2026-11-27, or a span of them, as 2026-11-20..2026-11-27"
        raise UsageError(f"ls: date={text} should be a day, a month or a year, {example} (in UTC, as in a run's id)")
    return first.replace("-", ""), f"{last.replace('-', '')}~"


def _values(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a plan says, by the keys that a person types; of two with one name the later one counts."""
    words = plan.get("words")
    for word in words if isinstance(words, list) else ():
        key, equals, value = str(word).partition("=")
        if equals:
            yield key, value
    for key, value in plan.items():
        if isinstance(value, (str, int, float)):
            yield key, value
    yield from _flat("cluster.", plan.get("cluster"))
    yield from _flat("", plan.get("settings"))
    swept = plan.get("swept")
    for item in swept if isinstance(swept, list) else ():
        if isinstance(item, list) and len(item) == 2:
            yield str(item[0]), item[1]
            yield f"sweep.{item[0]}", item[1]


def _flat(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for key, value in group.items() if isinstance(group, dict) else ():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _is(value: Any, text: str) -> bool:
    """Whether a value is what a person typed, which may have `*` in it; numbers however they are written."""
    try:
        return float(value) == float(text) and not isinstance(value, bool)
    except (TypeError, ValueError):
        return fnmatch.fnmatchcase(show(value).lower(), text.lower())
