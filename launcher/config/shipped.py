"""What the files of `conf/` say, by the settings classes: the defaults that they repeat for readers.

A value in `conf/` that equals the class's default is documentation. It is dropped when the file is read, so that it
neither counts as asked for nor hides a value of a weaker file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from amp_launcher.precision.levels import MODES, PRESETS, Amp
from amp_launcher.recipe import NAMES, find
from amp_launcher.settings import Data, Profile
from amp_launcher.typed import fields_of, plain
from launcher.config.schema import CLUSTERS, Container, defaults

CONFIG = "config"
"""The file that holds for every job, without its `.yaml`."""
DECIDES = {
    "amp": "level",
    "loss_scale": "preset",
    "recipe": "recipe",
    "data": "name",
    "cluster": "kind",
    "container": "kind",
    "profile": "tool",
}
"""Groups of files that stand for a choice, each with the key that names the choice."""


def defaults_of(path: str) -> dict[str, Any]:
    """Every key of a shipped file such as `amp/o2`, with its default; of `config` those that no group of files has.
    Empty for a file that has none."""
    if path == CONFIG:
        return {name: value for name, value in defaults().items() if name not in DECIDES}
    group, _, name = path.rpartition("/")
    if group == "loss_scale" and name in PRESETS:
        return {"preset": name, **plain(PRESETS[name])}
    if group == "amp" and name in MODES:
        mode = MODES[name]
        return {"tf32": None, "amp": plain(Amp())} if mode.tf32 is not None else plain(Amp(level=mode.level))
    if group == "recipe" and name in NAMES:
        return {"recipe": name, "train": plain(find(name).settings())}
    cls = class_of(group, name)
    return dict(plain(cls(**{DECIDES[group]: name}))) if cls else {}


def class_of(group: str, name: str) -> Any:
    """The settings class with a file's keys as fields; None where there is none."""
    if group == "cluster":
        return CLUSTERS.get(name)
    if group == "data":
        return Data if any(name in find(recipe).data for recipe in NAMES) else None
    cls: Any = {"amp": Amp, "container": Container, "profile": Profile}.get(group)
    return cls if cls and name in get_args(fields_of(cls)[DECIDES[group]]) else None


def requests(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file without those that equal their default; the key that names its choice stays."""
    return _without(values, defaults_of(path), DECIDES.get(path.rpartition("/")[0], ""))


def _without(values: Mapping[str, Any], defaults: Mapping[str, Any], kept: str = "") -> dict[str, Any]:
    requested: dict[str, Any] = {}
    for name, value in values.items():
        if name == kept or name not in defaults:
            requested[name] = value
        elif isinstance(value, Mapping) and isinstance(defaults[name], Mapping):
            if inner := _without(value, defaults[name]):
                requested[name] = inner
        elif value != defaults[name] or isinstance(value, bool) != isinstance(defaults[name], bool):
            requested[name] = value
    return requested
