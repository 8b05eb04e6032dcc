"""A trainer's settings: from typed words, `amp=o2 batch=512 run=FOLDER`, or from the plan in its run folder.

Standard library only. A person types words; the launcher says `run=FOLDER` alone, whose plan.json has every value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amp_launcher import run_folder, settings
from amp_launcher.precision import checks
from amp_launcher.precision.levels import MODES, PRESETS
from amp_launcher.recipe import Recipe, find
from amp_launcher.settings import PLAN_SCHEMA, Settings
from amp_launcher.typed import (
    SettingsError,
    convert,
    described,
    fields_of,
    is_group,
    leaves,
    not_a_choice,
    refuse_control_characters,
    show,
    unknown_key,
)
from amp_launcher.values import read

SHORT = {"amp": "amp.level", "data": "data.name", "profile": "profile.tool"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """What a trainer was started with."""

    settings: Settings
    run: Path | None = None
    """The run folder; without one nothing is written."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The launcher's whole plan; empty where words were typed."""


def parse(words: Sequence[str], recipe_name: str, framework: str, *, alone: bool = True) -> Arguments:
    """The arguments of the trainer of `recipe_name` in `framework`, with the recipe's defaults filled in. `run=FOLDER`
    alone takes the plan of that folder, where it has one; without `alone` more was typed than these words.

    Raises `SettingsError` for everything that a person can get wrong, the legality of the precision included;
    what depends on the device or on the number of processes is checked later.
    """
    recipe = find(recipe_name)
    typed = dict(_split(word) for word in _once_each(words))
    run = typed.pop("run", None)
    if run == "":
        raise SettingsError("run= names no path (command line)")
    folder = Path(run) if run else None
    path = run_folder.plan_file(folder) if folder and alone and not typed else None
    plan: Mapping[str, Any] = {}
    if path:
        plan = read_plan(path)
        chosen = _from_plan(plan, recipe, path)
    else:
        values: dict[str, Any] = {"recipe": recipe_name, "framework": framework}
        for key, value in _values(typed, recipe):
            _put(values, key, value)
        chosen = settings.from_values(values, recipe)
    chosen = settings.with_recipe_defaults(chosen, recipe)
    for key, own in (("recipe", recipe_name), ("framework", framework)):
        if getattr(chosen, key) != own and chosen.amp.claims:  # else the trainer is one for all frameworks
            raise SettingsError(f"{key}={getattr(chosen, key)}, and this trainer is {key}={own}", key)
    checks.check_precision(chosen.amp, chosen.loss_scale, chosen.framework)
    return Arguments(settings=chosen, run=folder, plan=plan)


def read_plan(path: Path) -> dict[str, Any]:
    """The JSON of a plan. Raises `SettingsError` where it can't be read or is of another schema."""
    try:
        plan = json.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", "run") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}", "run") from None
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA or not isinstance(plan.get("settings"), dict):
        raise SettingsError(f'{path} should hold "schema": {PLAN_SCHEMA} and "settings"', "run")
    return plan


def planned_ranks(plan: Mapping[str, Any]) -> int | None:
    """How many processes the plan has; None where there is no plan."""
    nodes, processes = plan.get("nodes"), plan.get("processes")
    return nodes * processes if isinstance(nodes, int) and isinstance(processes, int) else None


def help_text(recipe_name: str, module: str) -> str:
    """Every key with its type's default and its line of help."""
    recipe = find(recipe_name)
    lines = [f"usage: python -m {module} [key=value ...] [run=FOLDER]", ""]
    for key, _, text, default in (*described(Settings), *described(recipe.settings, "train.")):
        if key != "train":
            lines.append(f"  {key}={show(default)}  {text}")
    lines += ["", "  run=FOLDER  where metrics, checkpoints and the result go, and where a stopped run goes on from"]
    lines += ["  run=FOLDER alone takes all settings from the plan.json that the launcher left there"]
    return "\n".join(lines)


def _split(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise SettingsError(f"{word!r} should be key=value, as batch=512 (command line)")
    refuse_control_characters(key, text)
    return key, text


def _once_each(words: Sequence[str]) -> Sequence[str]:
    seen: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        key = SHORT.get(key, key)
        if key in seen:
            raise SettingsError(f"{seen[key]} and {word}: say one of them (command line)", key)
        seen[key] = word
    return words


def _values(typed: Mapping[str, str], recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Each typed key, spelled out, with its value; the mode's first, so that single keys refine it."""
    for preset, mode in MODES.items():
        if typed.get("amp") == preset:
            for key in ("level", "dtype", "gemm"):
                yield f"amp.{key}", getattr(mode, key)
            yield from (("amp.preset", preset), ("tf32", mode.tf32))
    for key, text in typed.items():
        if key == "amp" and text in MODES:
            continue
        if key == "loss_scale":
            if text not in PRESETS:
                raise SettingsError(f"{not_a_choice(key, text, PRESETS)} (command line)", key)
            yield "loss_scale.preset", text
            continue
        name = SHORT.get(key, key)
        annotation = _annotation(name, recipe)
        try:
            value = read(text, annotation, key)
            convert(value, annotation, key)
        except SettingsError as error:
            raise SettingsError(f"{error} (command line)", key) from None
        yield from leaves({name: value}).items()


def _annotation(key: str, recipe: Recipe) -> Any:
    cls: type = Settings
    *groups, last = key.split(".")
    for depth, name in enumerate(groups):
        inner = recipe.settings if cls is Settings and name == "train" else fields_of(cls).get(name)
        if not is_group(inner):
            raise SettingsError(f"{unknown_key(key, _keys(cls, groups[:depth]))} (command line)", key)
        cls = inner
    annotation = recipe.settings if cls is Settings and last == "train" else fields_of(cls).get(last)
    if annotation is None:
        raise SettingsError(f"{unknown_key(key, _keys(cls, groups))} (command line)", key)
    return annotation


def _keys(cls: type, groups: Sequence[str]) -> list[str]:
    names = [".".join([*groups, name]) for name in fields_of(cls)]
    return names if groups else [*names, "run"]


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for name in groups:
        values = values.setdefault(name, {})
    values[last] = value


def _from_plan(plan: Mapping[str, Any], recipe: Recipe, path: Path) -> Settings:
    try:
        return settings.from_values(plan["settings"], recipe)
    except SettingsError as error:
        raise SettingsError(f"{error} ({path})", error.key) from None
