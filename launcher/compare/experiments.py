"""Experiments: published tables, each a comparison of named arms, repeated by one command.

An experiment is a file of conf/experiment/ or of a --config-dir. One without `arms` is a bundle of settings for a
single run, which Hydra reads; one with `arms` is a comparison, and is read here:

    words: [recipe=gan, data=mnist]           what all arms share, as it would be typed
    compare: {rounds: 5, steps: 100}          how they are measured
    arms:                                     the first is the control
      - {name: float32, words: [amp=o0]}
      - {name: float16, words: [amp=o2, amp.dtype=float16]}
    frameworks:                               what changes in another framework than that of `words`
      torch: {words: [xla=false]}
    scales:                                   smaller forms, by the word scale=NAME
      smoke: {words: [data=synthetic], compare: {rounds: 1}, arms: [[], [loss_scale=none]], names: [float32, other]}
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
from pathlib import Path
from typing import Any, TypeVar

from amp_launcher.typed import SettingsError, build, nearest
from launcher.compare import comparison
from launcher.config.compose import Composer
from launcher.config.parse import is_key, parse
from launcher.config.paths import conf_folder
from launcher.config.request import Request, Words
from launcher.config.spec import make
from launcher.config.sweep import cells, without_half
from launcher.errors import UsageError, attempts, first_of
from launcher.plan.model import Compare, Published

T = TypeVar("T")
U = TypeVar("U")

KEY = "experiment="
SCALE = "scale="
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
    """A smaller form of an experiment, or its form in another framework."""

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
    compare: dict[str, Any] = field(default_factory=dict)
    arms: tuple[NamedArm, ...] = ()
    frameworks: dict[str, Form] = field(default_factory=dict)
    scales: dict[str, Form] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentRequest:
    """An experiment as it was asked for: its jobs, and how they are measured."""

    name: str
    how: Compare
    request: Request
    """A cell and a job for each arm."""
    published: Published | None
    impossible: tuple[tuple[str, str], ...] = ()
    """Arms that are left out, with the reason."""
    smaller: tuple[str, ...] = ()
    """The words for its smaller forms, if it was requested at full size."""


def named(words: Sequence[str]) -> str | None:
    """The experiment among the words, the last of several."""
    return next((word.removeprefix(KEY) for word in reversed(words) if word.startswith(KEY)), None)


def requested(words: Words) -> ExperimentRequest | None:
    """The comparison that the words name; None where they name none. Raises `UsageError`."""
    name = named(words.overrides)
    experiment = find(name, words.config_dirs) if name is not None else None
    if experiment is not None and name is not None:
        if words.arguments is not None:
            raise UsageError(f"arguments after -- are for a script, and experiment={name} runs none (command line)")
        return prepare(name, experiment, words.overrides, words.config_dirs)
    for word in words.overrides:
        if word.startswith(SCALE) and (name is None or _path(name, words.config_dirs)):
            what = f"experiment={name} is one run" if name else "no experiment is named"
            raise UsageError(f"{word} is for an experiment that has scales, and {what} (command line)")
    return None


def find(name: str, config_dirs: Sequence[Path]) -> Experiment | None:
    """The comparison by that name; None where it is a single run's settings, or there is none of that name.

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
        for key, forms in (("frameworks", experiment.frameworks), ("scales", experiment.scales)):
            for label, form in forms.items():
                if len(form.names) not in (0, len(experiment.arms)):
                    count = f"all {len(experiment.arms)} arms, not {len(form.names)}"
                    raise SettingsError(f"{key}.{label}.names should name {count}", key)
                build(Compare, form.compare, prefix=f"{key}.{label}.{comparison.PREFIX}")
        build(Compare, experiment.compare, prefix=comparison.PREFIX)
    except SettingsError as error:
        place = files.places(path).get(error.key)
        raise files.refused(path, place and place.line, " ".join(str(error).split())) from None
    if experiment.published and len(experiment.published.arms) != len(experiment.arms):
        raise UsageError(
            f"{path}: {len(experiment.arms)} arms, and {len(experiment.published.arms)} in what was published"
        )
    return experiment


def prepare(name: str, experiment: Experiment, words: Sequence[str], config_dirs: Sequence[Path]) -> ExperimentRequest:
    """The jobs of an experiment with the words typed after it. Raises `UsageError`."""
    typed = [word for word in words if not word.startswith((KEY, SCALE))]
    wanted = next((word.removeprefix(SCALE) for word in words if word.startswith(SCALE)), None)
    if wanted is not None and wanted not in experiment.scales:
        there = ", ".join(experiment.scales) or "none"
        full = f"; without scale= experiment={name} has its full size"
        hint = nearest(wanted, experiment.scales) or full
        raise UsageError(f"scale={wanted} is not one of {there}{hint} (command line)")
    scale = experiment.scales[wanted] if wanted else Form()
    other = _form_in(experiment, [*experiment.words, *scale.words, *typed])
    base = build(Compare, {**experiment.compare, **other.compare, **scale.compare}, prefix=comparison.PREFIX)
    how, typed = comparison.split_flags(typed, base)
    composer = Composer(config_dirs=config_dirs)
    groups = composer.groups()
    names = scale.names or other.names or tuple(arm.name for arm in experiment.arms)
    arms = []
    for index, arm in enumerate(experiment.arms):
        own = [*experiment.words, *arm.words]
        for form in (other, scale):
            own += [*form.words, *(form.arms[index] if index < len(form.arms) else ())]
        overrides = [parse(word, groups, f"{KEY}{name}") for word in own] + [parse(word, groups) for word in typed]
        comparison.check_words(overrides)
        swept = next((override.typed for override in overrides if override.swept), None)
        if swept:
            raise UsageError(
                f"{swept}: experiment={name} has its own arms; give one value, which holds for all of them"
            )
        (cell,) = cells(composer, overrides)
        arms.append(without_half(dataclasses.replace(cell, swept=(("arm", names[index]),))))
    made, impossible = possible(list(zip(names, arms, strict=True)), make)
    specs, left = tuple(made.values()), tuple(arms[index] for index in made)
    comparison.check(specs)
    return ExperimentRequest(
        name=name,
        how=how,
        request=Request(overrides=(), cells=left, specs=specs),
        published=only(_annotated(experiment.published, other, scale, wanted), made, impossible),
        impossible=impossible,
        smaller=() if wanted else tuple(f"{SCALE}{scale}" for scale in experiment.scales),
    )


def possible(arms: Sequence[tuple[str, T]], make: Callable[[T], U]) -> tuple[dict[int, U], tuple[tuple[str, str], ...]]:
    """Apply `make` to each named arm. Returns the results by index, and the names of the failed arms with the reasons.

    Raises the first `LauncherError` if it is the control's, or leaves fewer than two arms.
    """
    made, refused = attempts(arms, make)
    if refused and (0 not in made or len(made) < 2):
        raise first_of(refused, len(arms), "arm")
    return made, tuple((name, str(error).partition("\n")[0]) for name, error in refused)


def only(published: Published | None, made: Iterable[int], impossible: Sequence[tuple[str, str]]) -> Published | None:
    """What was published of the arms that can be measured, with a note on the others."""
    if published is None or not impossible:
        return published
    note = " ".join(f"Not measured here: {name} ({why})." for name, why in impossible)
    arms = tuple(published.arms[index] for index in made)
    return dataclasses.replace(published, arms=arms, note=f"{published.note} {note}".strip())


def _annotated(published: Published | None, other: Form, scale: Form, wanted: str | None) -> Published | None:
    """What was published, with the notes on the forms that are measured instead."""
    if published is None:
        return None
    small = f"Measured was its form scale={wanted}, which shows that it runs and says nothing of its speed."
    notes = (published.note, other.note, small if wanted else "", scale.note)
    return dataclasses.replace(published, note=" ".join(note for note in notes if note))


def _path(name: str, config_dirs: Sequence[Path]) -> Path | None:
    places = [folder / "experiment" / f"{name}.yaml" for folder in (*config_dirs, conf_folder())]
    return next((place for place in places if place.is_file()), None)


def _form_in(experiment: Experiment, words: Sequence[str]) -> Form:
    """What changes in the framework that the words name, the last of several."""
    chosen = [word.removeprefix(FRAMEWORK) for word in words if word.startswith(FRAMEWORK)]
    return experiment.frameworks.get(chosen[-1], Form()) if chosen else Form()
