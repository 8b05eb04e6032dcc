"""`run --help`: every key that can be set, with its type, default and purpose, from the code that reads it."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.recipe import NAMES, DataLayout, find, own_names
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, described, show
from launcher.config.paths import names_in
from launcher.config.schema import CLUSTERS, GROUPS, Launch
from launcher.search.space import Search

_USAGE = """\
Check a job and start it. On this machine the command stays and shows progress; Ctrl-C asks the run to save and stop,
a second one kills it. `resume` continues it.

usage: python -m launcher [run] [key=value ...] [--config-dir DIR] [--cfg job]
       python -m launcher [run] SCRIPT [key=value ...] [-- ARGUMENTS OF THE SCRIPT]

A first word that is a file, or image:FILE, is your own script: the same as recipe=script script=FILE.

A comma list sweeps: amp=o0,o1,o2 batch=128,256 is six runs; seed=range(0,5) is five. With search=optuna, as in
search=optuna search.trials=40 search.metric=accuracy "train.lr=interval(1e-4,1)", it searches instead.

The text of keys marked `text` is taken as typed, commas included. Lists are written [a,b]; null takes a value back.

choices, each a file of conf/ or of your --config-dir:
"""


class Key(NamedTuple):
    """A key, as its help shows it."""

    name: str
    values: str
    """The type of its values, or all of them."""
    about: str


def keys(config_dirs: Sequence[Path]) -> str:
    """The help text of `run`."""
    lines = [_USAGE.rstrip("\n"), *(f"  {group}={'|'.join(names)}" for group, names in choices(config_dirs).items())]
    for title, found in sections():
        lines += ["", f"{title}:", *(f"  {key.name:24} {key.values:24} {key.about}" for key in found)]
    return "\n".join(lines) + "\n"


def choices(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """The names that each group has, those of a person's own files among them."""
    return {group: names for group in GROUPS if (names := names_in(group, config_dirs))}


def sections() -> Iterator[tuple[str, list[Key]]]:
    """All keys, under a title for those of each cluster and recipe."""
    yield "keys", [*_section(Settings, skip=("train",)), *_section(Launch, skip=("cluster",))]
    for kind, cluster in CLUSTERS.items():
        yield f"keys of cluster={kind}", list(_section(cluster, prefix="cluster.", skip=("kind",)))
    yield "keys of search=optuna", list(_section(Search, prefix="search."))
    for name in (*NAMES, *own_names()):
        try:
            recipe = find(name)
        except SettingsError as error:  # a person's own recipe that is not finished
            yield str(error), []
            continue
        own = f" (batch={recipe.batch}, epochs={recipe.epochs} unless named)" if recipe.data else ""
        sets = [Key(f"data={name}", "", f"{layout.help}{_of_its_own(layout)}") for name, layout in recipe.data.items()]
        yield f"keys of recipe={name}{own}", [*sets, *_section(recipe.settings, prefix="train.")]


def _of_its_own(layout: DataLayout) -> str:
    """What a data set has in place of the recipe's own values."""
    own = [f"{name}={value}" for name, value in (("batch", layout.batch), ("epochs", layout.epochs)) if value]
    return f" ({', '.join(own)})" if own else ""


def _section(cls: Any, prefix: str = "", skip: Sequence[str] = ()) -> Iterator[Key]:
    for key, annotation, text, default in described(cls, prefix):
        if key.removeprefix(prefix) not in skip:
            shown = f" [{show(default)}]" if default not in (None, "", (), {}) else ""
            yield Key(key, _type(annotation), f"{text}{shown}")


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(str(argument) for argument in typing.get_args(annotation))
    names = {str: "text", int: "number", float: "number", bool: "true|false"}
    if annotation in names:
        return names[annotation]
    if hasattr(annotation, "from_setting"):
        return "number|TYPE:number"
    inside = [argument for argument in typing.get_args(annotation) if argument not in (type(None), Ellipsis)]
    if typing.get_origin(annotation) is tuple:
        named = typing.get_origin(inside[0]) is typing.Literal
        return f"list of {_type(inside[0])}{'s' * (not named)}"
    if typing.get_origin(annotation) is dict:
        return "text each"
    return _type(inside[0]) if inside else "value"
