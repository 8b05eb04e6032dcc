"""What a search searches: the keys that are an interval or list values, and the words of one trial."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amp_launcher.recipe import NAMES
from amp_launcher.typed import least, nearest, options_of, setting
from launcher.config import placeholders, request
from launcher.config.compose import Composer
from launcher.config.parse import PASSED, own_settings, parse
from launcher.config.request import Words
from launcher.config.schema import annotation_of, text_key
from launcher.config.spec import JobSpec
from launcher.config.sweep import by_level
from launcher.errors import TYPED, UsageError
from launcher.search import KEY, PREFIX, is_asked, key_of
from launcher.ui import sweep_table

LOG_FROM = 100
"""Ratio of an interval's ends from which on its values are spaced by their logarithm."""
OF_RECIPES = ("loss", "accuracy", "eval.loss", "rate")
"""What our recipes measure."""
_INTERVAL = re.compile(r"(interval|log|linear)\((.*)\)")
_WHOLE = re.compile(r"[+-]?\d+")
_NEEDS_QUOTES = re.compile(r"""[,()\[\]{}"'\\]|^\s|\s$""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How a search goes."""

    metric: str | None = setting(None, "what is searched by: loss, accuracy, eval.loss, rate or a logged name")
    trials: int = setting(20, "trials in all", least(1, 10_000))
    parallel: int | None = setting(None, "trials that may run at once; null is 1 here and 4 on Slurm", least(1))
    best: Literal["auto", "lowest", "highest"] = setting("auto", "auto is lowest for a loss or an error, else highest")
    prune: bool = setting(True, "cancel a trial that is worse than the median of others at the same step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Numbers between two ends, which belong to it."""

    low: str
    high: str
    """As typed."""
    log: bool
    whole: bool = False

    def text(self, value: float) -> str:
        """A value as it is typed, without digits that say nothing."""
        if self.whole:
            return str(round(value))
        low, high = float(self.low), float(self.high)
        short = f"{value:.5g}"
        wide = high - low > 0.01 * max(abs(low), abs(high))
        return short if wide and low <= float(short) <= high else repr(float(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The words of a search, some of which are searched."""

    words: tuple[str, ...]
    """All but those of `search`."""
    intervals: Mapping[str, Interval]
    choices: Mapping[str, tuple[str, ...]]

    @property
    def searched(self) -> tuple[str, ...]:
        return (*self.intervals, *self.choices)

    def with_values(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        """The words with one value for each of these keys."""
        return tuple(_with_values(self.words, texts))

    def described(self) -> Iterator[str]:
        """What is searched, in words."""
        for key in map(key_of, self.words):
            if key in self.choices:
                yield f"{key} {', '.join(self.choices[key])}"
            elif interval := self.intervals.get(key):
                kind = f"{', whole' * interval.whole}{', by its logarithm' * interval.log}"
                yield f"{key} {interval.low} to {interval.high}{kind}"


def split(words: Words) -> tuple[Search, Space]:
    """How to search, and what. Raises `UsageError`."""
    by = [word.partition("=")[2] for word in words.overrides if key_of(word) == KEY]
    if not by:
        raise UsageError(f"{PREFIX}NAME is for a search; say search=optuna too{TYPED}")
    if by[-1] != "optuna":
        raise UsageError(f"search={by[-1]}: optuna is what searches; say search=optuna{TYPED}")
    values, rest = own_settings(words.overrides, PREFIX, Search)
    how = dataclasses.replace(Search(), **values)
    if not how.metric:
        raise UsageError(
            "search.metric is missing: say what to search by, as search.metric=accuracy (or loss, eval.loss, rate, "
            f"a name that the script gives job.log){TYPED}"
        )
    rest = [word for word in rest if key_of(word) != KEY]
    space = _space(rest, Composer(config_dirs=words.config_dirs).groups())
    if not space.searched:
        raise UsageError(
            "search=optuna has nothing to search: give a key an interval, as train.lr=interval(1e-4,1), or a list"
            f"{TYPED}"
        )
    cells = math.prod(len(texts) for texts in space.choices.values())
    if not space.intervals and cells <= how.trials:
        raise UsageError(
            f"these words have {cells} cells, which a sweep runs in {cells} trials; leave search out, or give a key an "
            f"interval{TYPED}"
        )
    return how, space


def _space(words: Sequence[str], groups: Sequence[str]) -> Space:
    intervals: dict[str, Interval] = {}
    choices: dict[str, tuple[str, ...]] = {}
    keys = list(map(key_of, words))
    for key, word in zip(keys, words, strict=True):
        if match := _INTERVAL.fullmatch(word.partition("=")[2]):
            intervals[key] = _interval(key, *match.groups())
        elif (override := parse(word, groups)).swept:
            choices[key] = tuple("null" if value is None else str(value) for value in override.values)
            for value in choices[key]:
                if choices[key].count(value) > 1:
                    raise UsageError(f"{word} lists {value} twice{TYPED}")
    space = Space(words=tuple(words), intervals=intervals, choices=choices)
    if twice := next((key for key in space.searched if keys.count(key) > 1), None):
        raise UsageError(f"{twice} is given twice, and it is searched; give it once{TYPED}")
    return space


def _interval(key: str, call: str, inside: str) -> Interval:
    """Raises `UsageError`."""
    typed = f"{key}={call}({inside})"
    ends = [part.strip() for part in inside.split(",")]
    try:
        low, high = map(float, ends)
        finite = abs(low) < float("inf") and abs(high) < float("inf")
    except ValueError:
        finite = False
    if not finite:
        raise UsageError(f"{typed} can't be read; say {call}(LOW,HIGH) in two numbers{TYPED}")
    if low > high:
        raise UsageError(f"{typed} is upside down; say {call}({ends[1]},{ends[0]}){TYPED}")
    if low == high:
        raise UsageError(f"{typed} has one value; say {key}={ends[0]}{TYPED}")
    if call == "log" and low <= 0:
        raise UsageError(f"{typed}: a logarithm needs a lowest value above 0; say linear({inside}){TYPED}")
    log = call == "log" or (call == "interval" and low > 0 and high / low >= LOG_FROM)
    return Interval(low=ends[0], high=ends[1], log=log)


def repeated(command: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """The command of one trial as a run: the search's, with these values."""
    end = command.index(PASSED) if PASSED in command else len(command)
    own = [word for word in command[:end] if not is_asked([word])]
    return [*_with_values(own, texts), *command[end:]]


def _with_values(words: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    return [
        f"{word.partition('=')[0]}={_typed(key, texts[key])}" if (key := key_of(word)) in texts else word
        for word in words
    ]


def _typed(key: str, text: str) -> str:
    """A value as one word's, so that it is read as this text and no list."""
    if not text_key(key) or not _NEEDS_QUOTES.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'choice("{escaped}")'


def ends(space: Space, words: Words, how: Search) -> tuple[Space, list[JobSpec]]:
    """The jobs at the lowest and at the highest values, each with all listed ones; and the space with the types of its
    intervals. Raises `UsageError` for whatever is wrong in any of them."""
    lowest = specs(space, words, {key: interval.low for key, interval in space.intervals.items()})
    intervals = {key: _of_type(key, interval, lowest) for key, interval in space.intervals.items()}
    typed = dataclasses.replace(space, intervals=intervals)
    highest = specs(space, words, {key: interval.high for key, interval in intervals.items()}) if intervals else ()
    found = [*lowest, *highest]
    _check_metric(str(how.metric), found)
    if any(spec.launch.detach for spec in found):
        raise UsageError(f"detach=true: a search asks for trials as others end, so it stays; leave detach out{TYPED}")
    if any(spec.launch.cluster.kind == "ssh" or getattr(spec.launch.cluster, "login", None) for spec in found):
        raise UsageError(
            f"a search runs on the machine where it is started, or on its Slurm cluster; start it there{TYPED}"
        )
    return typed, found


def specs(space: Space, words: Words, texts: Mapping[str, str]) -> Sequence[JobSpec]:
    """The jobs with these values, for each combination of the listed ones that are left. Raises `UsageError`."""
    one = dataclasses.replace(words, overrides=space.with_values(texts))
    cells = [
        dataclasses.replace(
            cell, swept=tuple((word.key, word.values[0]) for word in cell.words if word.key in space.searched)
        )
        for cell in request.compose(one)
    ]
    return request.to_specs(by_level(cells), "trial")


def _of_type(key: str, interval: Interval, found: Sequence[JobSpec]) -> Interval:
    """The interval as the type of its key has it. Raises `UsageError` for a key that takes no numbers."""
    if key.startswith(placeholders.KEY):
        return dataclasses.replace(
            interval, whole=all(_WHOLE.fullmatch(end) is not None for end in (interval.low, interval.high))
        )
    kinds: set[Any] = {kind for spec in found for kind in options_of(annotation_of(key, type(spec.training.train)))} - {
        type(None)
    }
    if not all(isinstance(kind, type) and issubclass(kind, (int, float)) and kind is not bool for kind in kinds):
        raise UsageError(
            f"{key} takes no number, and an interval is of numbers; list values, as {key}=choice(a,b){TYPED}"
        )
    return dataclasses.replace(interval, whole=any(issubclass(kind, int) for kind in kinds))


def _check_metric(metric: str, found: Sequence[JobSpec]) -> None:
    """Refuse a metric that never comes, as far as that is known before. Raises `UsageError`."""
    for spec in found:
        if spec.recipe.name == "script" and spec.training.train.bare:
            raise UsageError(
                f"search.metric={metric}: nothing reads what a bare script measures; leave train.bare out, and have "
                f"the script call job.log{TYPED}"
            )
        if (
            spec.recipe.name in NAMES
            and spec.recipe.name != "script"
            and sweep_table.plain(metric, OF_RECIPES) not in OF_RECIPES
        ):
            raise UsageError(
                f"search.metric={metric} never comes: recipe={spec.recipe.name} measures "
                f"{', '.join(OF_RECIPES)}{nearest(metric, OF_RECIPES)}{TYPED}"
            )
