"""A composed configuration as a typed job. Every mistake that needs no host to be seen is refused here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amp_launcher import settings
from amp_launcher.precision import checks
from amp_launcher.recipe import Recipe, find
from amp_launcher.settings import Profile, Settings
from amp_launcher.typed import NotText, SettingsError, build, fields_of, leaves, mapping, not_a_choice, show
from launcher.config import launch_checks, placeholders
from launcher.config.key_checks import meant_key
from launcher.config.parse import COMMAND_LINE, Override, typed_words
from launcher.config.schema import CLUSTERS, TRAINING_KEYS, Container, Launch, known_keys
from launcher.config.sweep import Cell, within
from launcher.errors import UsageError, placed

if TYPE_CHECKING:
    from launcher.config.files import SourceLine


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """One job, fully typed, nothing looked up yet."""

    training: Settings
    launch: Launch
    recipe: Recipe
    words: tuple[str, ...]
    """The trainer's words, as `amp=o2`: what was typed of the keys that the trainer reads."""
    place: Callable[[str], str] = field(compare=False, repr=False)
    """Where a key got its value, for the end of an error message."""
    swept: tuple[tuple[str, Any], ...] = ()
    """Where this job differs from the others of its sweep."""
    assumed: bool = False
    """Whether the framework is the default: none was named, or found in the script's text."""
    command: tuple[str, ...] = ()
    """The overrides as they were typed, for the record."""
    job: str | None = None
    """Its name in the file of its chain."""


def make(cell: Cell) -> JobSpec:
    """The job that a composed configuration spells. Raises `UsageError` for every value that can't be."""
    try:
        spec = _make(cell)
        launch_checks.check_launch(spec.launch, spec.training)
        training, recipe = spec.training, spec.recipe
        if training.framework not in recipe.frameworks:
            known = ", ".join(recipe.frameworks)
            raise SettingsError(f"framework={training.framework}: recipe {recipe.name} is available in {known}")
        checks.check_precision(training.amp, training.loss_scale, training.framework)
        settings.check_settings(training)
    except SettingsError as error:
        if isinstance(error, NotText) and (written := _in_file(cell, error.key)) and written.text:
            quoted = f'"{written.text}"' if '"' not in written.text else f"'{written.text}'"
            message = f"{error.key} is text, and YAML reads {written.text} as {error.read}: quote it, as {quoted}"
            raise UsageError(f"{message} ({written})") from None
        raise UsageError(placed(str(error), place(cell, error.key))) from None
    return spec


def place(cell: Cell, key: str) -> str:
    """Where a key got its value, for the end of an error message."""
    words = [override for override in cell.words if within(key, override.key)]
    typed = sorted(words, key=lambda override: override.kind != "value")
    where = _in_file(cell, key) or next((override.source for override in typed), "")
    return f" ({where})" if where else ""


def _in_file(cell: Cell, key: str) -> SourceLine | None:
    """Where a key stands in a person's own file; None where it is set elsewhere."""
    if any(override.kind == "value" and within(key, override.key) for override in cell.words):
        return None
    return cell.composed.places.get(key) or cell.composed.places.get(key.partition("[")[0])


def _make(cell: Cell) -> JobSpec:
    config = dict(cell.config)
    recipe_name = config.get("recipe", "mnist")
    if not isinstance(recipe_name, str):
        raise SettingsError(f"recipe is text, and {show(recipe_name)} is not", "recipe")
    recipe = find(recipe_name)
    for name in config:
        if name not in TRAINING_KEYS and name != "train" and name not in fields_of(Launch):
            meant = meant_key(name, known_keys(recipe.settings), [*TRAINING_KEYS, *fields_of(Launch)])
            raise SettingsError(f"unknown key {name}{meant}", name)
    chosen = {name: value for name, value in config.items() if name in fields_of(Settings)}
    training = settings.with_recipe_defaults(settings.from_values(chosen, recipe), recipe)
    launching = {name: value for name, value in config.items() if name in fields_of(Launch)}
    cluster = _cluster(mapping(launching.pop("cluster", {"kind": "local"}), "cluster"))
    launch = dataclasses.replace(build(Launch, launching), cluster=cluster)
    if recipe.name == "script":
        launch = dataclasses.replace(launch, arguments=placeholders.filled(launch.arguments, launch.sweep))
    swept = {key for key, _ in cell.swept}  # as container=none,docker, where keys of docker are for the other cells
    if launch.container.kind == "none" and "container" in swept:
        launch = dataclasses.replace(launch, image=None, mounts=(), container=Container())
    elif launch.container.kind == "none" and launch.image_is:  # an experiment's image, and this host is one made of it
        launch = dataclasses.replace(launch, image=None)
    if training.profile.tool == "none" and "profile" in swept:
        training = dataclasses.replace(training, profile=Profile())
    if cell.left_out:
        note = f"amp=o0 is float32, and takes none of {' '.join(cell.left_out)}"
        launch = dataclasses.replace(launch, notes=(*launch.notes, note))
    return JobSpec(
        place=functools.partial(place, cell),
        training=training,
        launch=launch,
        recipe=recipe,
        words=_trainer_words(cell.words, training),
        swept=placeholders.labels(cell.swept),
        assumed=recipe.name == "script" and not config.get("framework"),
        command=tuple(word for typed in cell.words if typed.source == COMMAND_LINE for word in typed_words(typed)),
    )


def _cluster(values: Mapping[str, Any]) -> Any:
    kind = values.get("kind")
    if kind not in CLUSTERS:
        raise SettingsError(not_a_choice("cluster.kind", show(kind), CLUSTERS), "cluster.kind")
    for name in values:
        owners = [owner for owner, cls in CLUSTERS.items() if name in fields_of(cls)]
        if owners and kind not in owners:
            raise SettingsError(
                f"cluster.{name} belongs to cluster={' or '.join(owners)}, and this is cluster={kind}",
                f"cluster.{name}",
            )
    return build(CLUSTERS[kind], values, prefix="cluster.")


def _trainer_words(overrides: tuple[Override, ...], training: Settings) -> tuple[str, ...]:
    """`amp` and `batch` always, but for a script no batch; then whatever else was typed of what the trainer reads."""
    words = {"amp": f"amp={training.amp.asked}"}
    if training.batch:
        words["batch"] = f"batch={training.batch}"
    for override in overrides:
        root = override.key.split(".")[0]
        if override.prefix == "~" or root in ("recipe", "framework") or override.values == (None,):
            continue
        if root in TRAINING_KEYS or root == "train":
            if override.key in ("amp.level", "amp.preset", "train.command"):
                continue
            if override.key == "train.bare" and training.recipe == "script" and training.train.command:
                continue
            # A group may be given as a mapping, as checkpoint={every:5}; the trainer knows its keys.
            for key, value in leaves({override.key: override.values[0]}).items():
                words[key] = f"{key}={show(value)}"
    return tuple(words.values())
