"""Experiments: published tables, each a comparison of named arms, repeated by one command.

An experiment is a file of conf/experiment/ or of a --config-dir. One without `arms` is a bundle of settings for a
single run, which Hydra reads; one with `arms` is a comparison, and is read here:

    words: [recipe=gan, data=mnist]           what all arms share, as it would be typed
    compare: {rounds: 5, steps: 100}          how they are measured
    arms:                                     the first is the control
      - {name: float32, words: [amp=o0]}
      - {name: float16, words: [amp=o2, amp.dtype=float16]}
    forms:                                    what changes by a word: another framework, or scale=NAME for less
      framework=torch: {words: [xla=false]}
      scale=smoke: {words: [gpus=0], compare: {rounds: 1}, arms: [[], [loss_scale=none]], names: [float32, other]}
    published:                                what it repeats
      source: ...
      hardware: ...
      arms: [{step_seconds: 0.150}, {step_seconds: 0.0684}]

Words typed after experiment=NAME come last and hold for all arms.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from amp_launcher.typed import SettingsError, build, nearest, plain
from launcher.compare import EXPERIMENT, SCALE, comparison
from launcher.config import request
from launcher.config.parse import is_key
from launcher.config.paths import conf_folder
from launcher.config.request import Words
from launcher.config.spec import JobSpec, make
from launcher.config.sweep import Cell, without_half
from launcher.errors import UsageError, attempts, first_of
from launcher.plan.model import Compare, Published

T = TypeVar("T")
U = TypeVar("U")

FRAMEWORK = "framework="
NAME = re.compile(r"[\w.+-]{1,60}")
"""A valid name of a run: an experiment's runs are named after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedArm:
    """One arm of an experiment."""

    name: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What changes in an experiment by a word: another framework's, or the scale of a smaller form."""

    words: tuple[str, ...] = ()
    compare: dict[str, Any] = field(default_factory=dict)
    arms: tuple[tuple[str, ...], ...] = ()
    """Words for each arm by its place, which come after its own."""
    names: tuple[str, ...] = ()
    """Names of all arms, where their own would be wrong in this form."""
    note: str = ""
    """A note on its figures, shown with the published ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A comparison as a file describes it."""

    words: tuple[str, ...] = ()
    compare: Compare = field(default_factory=Compare)
    arms: tuple[NamedArm, ...] = ()
    forms: dict[str, Form] = field(default_factory=dict)
    """By the word that asks for it; those that hold are applied in this order."""
    published: Published | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRequest:
    """A comparison as it was asked for, by listed values or as an experiment: its jobs, and how they are measured."""

    name: str = ""
    """The experiment's."""
    how: Compare
    cells: tuple[Cell, ...]
    """One for each arm."""
    specs: tuple[JobSpec, ...]
    """Their jobs."""
    published: Published | None = None
    impossible: tuple[tuple[str, str], ...] = ()
    """Arms that are left out, with the reason."""
    smaller: tuple[str, ...] = ()
    """The words for its smaller forms, if it was requested at full size."""


def requested(words: Words) -> ComparisonRequest | None:
    """The experiment that the words name; None where they name none. Raises `UsageError`."""
    name = _last(EXPERIMENT, words.overrides).removeprefix(EXPERIMENT)
    if (experiment := find(name, words.config_dirs)) is not None:
        if words.arguments is not None:
            raise UsageError(f"arguments after -- are for a script, and experiment={name} runs none (command line)")
        return prepare(name, experiment, words.overrides, words.config_dirs)
    for word in words.overrides:
        if word.startswith(SCALE) and (not name or _path(name, words.config_dirs)):
            what = f"experiment={name} is one run" if name else "no experiment is named"
            raise UsageError(f"{word} is for an experiment that has scales, and {what} (command line)")
    return None


def find(name: str, config_dirs: Sequence[Path]) -> Experiment | None:
    """The comparison by that name; None for a single run's settings, and for an unknown name.

    Raises `UsageError` for a file that can't be read.
    """
    path = _path(name, config_dirs)
    if path is None or not NAME.fullmatch(name):
        return None
    from launcher.config import files

    values = files.read(path)
    if "arms" not in values:
        return None
    try:
        for key in values:
            if is_key(str(key)):
                raise SettingsError(f"{key} belongs into words, as words: [{key}=...]", key)
        experiment = build(Experiment, values)
        names = [arm.name for arm in experiment.arms]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(f"two arms are named {twice}", "arms")
        if experiment.published and (count := len(experiment.published.arms)) != len(names):
            raise SettingsError(f"{len(names)} arms, and {count} in what was published", "published")
        for word, form in experiment.forms.items():
            if len(form.names) not in (0, len(names)) or len(form.arms) > len(names):
                raise SettingsError(f"forms.{word}: the arms are {len(names)}; names are of all, or left out", "forms")
            build(Compare, form.compare, prefix=f"forms.{word}.{comparison.PREFIX}")
    except SettingsError as error:
        place = files.places(path).get(error.key)
        raise files.refused(path, place and place.line, " ".join(str(error).split())) from None
    return experiment


def prepare(name: str, experiment: Experiment, words: Sequence[str], config_dirs: Sequence[Path]) -> ComparisonRequest:
    """The jobs of an experiment with the words typed after it. Raises `UsageError`."""
    forms = _chosen(name, experiment, words)
    for word, form in forms.items():
        experiment = _in_form(experiment, word, form)
    typed = [word for word in words if not word.startswith((EXPERIMENT, SCALE))]
    how, typed = comparison.split_flags(typed, experiment.compare)
    names, arms = [arm.name for arm in experiment.arms], []
    for arm in experiment.arms:
        own = [*experiment.words, *arm.words]
        places = {word: f"{EXPERIMENT}{name}" for word in own if word not in typed}
        cell, *others = request.compose(Words(overrides=(*own, *typed), sources=places, config_dirs=tuple(config_dirs)))
        comparison.check_words(cell.words)
        if others:
            swept = next(word.typed for word in cell.words if word.key == cell.swept[0][0])
            raise UsageError(
                f"{swept}: {EXPERIMENT}{name} has its own arms; give one value, which holds for all of them"
            )
        arms.append(without_half(dataclasses.replace(cell, swept=(("arm", arm.name),))))
    made, impossible = possible(list(zip(names, arms, strict=True)), make)
    specs = tuple(made.values())
    comparison.check_arms(specs)
    return ComparisonRequest(
        name=name,
        how=how,
        cells=tuple(arms[index] for index in made),
        specs=specs,
        published=only(experiment.published, made, impossible),
        impossible=impossible,
        smaller=() if any(_is_scale(word) for word in forms) else tuple(filter(_is_scale, experiment.forms)),
    )


def possible(
    arms: Sequence[tuple[str, T]], make: Callable[[T], U], at_least: int = 2
) -> tuple[dict[int, U], tuple[tuple[str, str], ...]]:
    """Apply `make` to each named arm. Returns the results by index, and the names of the failed arms with the reasons.

    Raises the first `LauncherError` if it is the control's, or leaves fewer than `at_least` arms.
    """
    made, refused = attempts(arms, make)
    if refused and (0 not in made or len(made) < at_least):
        raise first_of(refused, len(arms), "arm")
    return made, tuple((name, str(error).partition("\n")[0]) for name, error in refused)


def only(published: Published | None, made: Iterable[int], impossible: Sequence[tuple[str, str]]) -> Published | None:
    """What was published of the arms that can be measured, with a note on the others."""
    if published is None or not impossible:
        return published
    note = " ".join(f"Not measured here: {name} ({why})." for name, why in impossible)
    arms = tuple(published.arms[index] for index in made)
    return dataclasses.replace(published, arms=arms, note=f"{published.note} {note}".strip())


def _in_form(experiment: Experiment, word: str, form: Form) -> Experiment:
    """The experiment as it is in that form, its published figures with a note on what is measured instead."""
    arms = tuple(
        NamedArm(name=name or arm.name, words=(*arm.words, *form.words, *(own or ())))
        for arm, own, name in zip_longest(experiment.arms, form.arms, form.names)
    )
    small = f"Measured was its form {word}, which shows that it runs and says nothing of its speed."
    published = experiment.published
    if published:
        notes = (published.note, small if _is_scale(word) else "", form.note)
        published = dataclasses.replace(published, note=" ".join(filter(None, notes)))
    compare = build(Compare, {**plain(experiment.compare), **form.compare})
    return dataclasses.replace(experiment, compare=compare, arms=arms, published=published)


def _path(name: str, config_dirs: Sequence[Path]) -> Path | None:
    places = [folder / "experiment" / f"{name}.yaml" for folder in (*config_dirs, conf_folder())]
    return next((place for place in places if place.is_file()), None)


def _is_scale(word: str) -> bool:
    return word.startswith(SCALE)


def _chosen(name: str, experiment: Experiment, words: Sequence[str]) -> dict[str, Form]:
    """The forms by the scale and the framework that are asked for, the last of several. Raises `UsageError`."""
    scale = _last(SCALE, words)
    if scale and scale not in experiment.forms:
        there = [word.removeprefix(SCALE) for word in experiment.forms if _is_scale(word)]
        hint = nearest(scale.removeprefix(SCALE), there) or f"; without scale= {EXPERIMENT}{name} has its full size"
        raise UsageError(f"{scale} is not one of {', '.join(there) or 'none'}{hint} (command line)")
    small = experiment.forms[scale].words if scale else ()
    asked = (scale, _last(FRAMEWORK, [*experiment.words, *small, *words]))
    return {word: form for word, form in experiment.forms.items() if word in asked}


def _last(key: str, words: Sequence[str]) -> str:
    return next((word for word in reversed(words) if word.startswith(key)), "")
