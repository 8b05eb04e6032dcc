"""Folders of configuration: `conf/` and those of a site or a person."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.recipe import NAMES, find
from amp_launcher.settings import Profile
from amp_launcher.typed import fields_of, show
from launcher.config import files, shipped
from launcher.config.files import SourceLine, refused
from launcher.config.paths import conf_folder
from launcher.config.schema import CLUSTERS, REQUIRED_GROUPS, TRAINING_KEYS, UNCHOSEN, Container
from launcher.config.shipped import CONFIG, DECIDES

OF_WHOLE_JOB = ("recipe", "experiment")
"""Groups whose files have the keys of the whole job, with or without a line `# @package _global_`."""


class Defaults(NamedTuple):
    """What a folder's config.yaml sets for every job."""

    path: Path
    choices: dict[str, SourceLine]
    """A file of each group, and where it is chosen."""
    values: dict[str, Any]
    """What it asks for beyond the defaults."""


class Folder:
    """A folder of configuration files. Those outside the package are checked when they are read."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.shipped = path == conf_folder()
        self.choices: Mapping[str, str] = {}
        """Of `conf/`: the file of each group that holds where no word chooses one."""
        self._loaded = functools.cache(self._load)

    @functools.cached_property
    def defaults(self) -> Defaults | None:
        """What its config.yaml asks for; None where it has none. Raises `UsageError`."""
        path = self.file(CONFIG)
        if not path.is_file():
            return None
        values, places = files.read(path, shipped=self.shipped), {}
        if not self.shipped:
            files.check_defaults(path, values)
            places = files.places(path)
        choices = _choices(path, values.pop("defaults", []), places)
        for group in REQUIRED_GROUPS:
            key, value = DECIDES[group], values.get(group)
            if isinstance(value, dict) and key in value:
                line = places[f"{group}.{key}"].line
                raise refused(path, line, f"{group}.{key} follows from {group}; say `{group}: {value[key]}`")
            if isinstance(value, str):
                choices[group] = places[group]
                del values[group]
            elif value is not None and not isinstance(value, dict):
                what = f"{group}: {show(value)} should be one name, or keys; a sweep is typed, as {group}=a,b"
                raise refused(path, places[group].line, what)
        return Defaults(path, choices, shipped.requests(CONFIG, values))

    def file(self, name: str) -> Path:
        return self.folder / f"{name.removesuffix('.yaml')}.yaml"

    def chosen_by(self, name: str) -> tuple[dict[str, Any], str | None]:
        """What chooses the files of a configuration: a file's keys, without values but for its `defaults`, and the
        package that it names."""
        if name == CONFIG:
            chosen = ({group: name} for group, name in self.choices.items())
            return {"defaults": ["_self_", *chosen, *({group: None} for group in UNCHOSEN)]}, None
        values, package = self._loaded(name)
        return {key: value if key == "defaults" else None for key, value in values.items()}, package

    def values(self, name: str) -> dict[str, Any]:
        """What a file sets. Of a config.yaml nothing, as that has the lowest priority: it is merged under the rest."""
        values = {} if name == CONFIG else self._loaded(name)[0]
        return {key: value for key, value in values.items() if key != "defaults"}

    def _load(self, name: str) -> tuple[dict[str, Any], str | None]:
        """The values of a file, and the package that it names."""
        path = self.file(name)
        values, package = files.read(path, shipped=self.shipped), files.package_of(path)
        group, _, choice = name.partition("/")
        if package is None and group in OF_WHOLE_JOB:
            package = "_global_"
        if not self.shipped:
            files.check_defaults(path, values)
            if group == "recipe" and not {"recipe", "defaults"} & set(values):
                raise refused(path, None, f"names no recipe: write `recipe: {choice}`, or another recipe's name")
            if group == "cluster" and not {"kind", "defaults"} & set(values):
                raise refused(path, None, f"names no kind of cluster: write `kind: ` and one of {', '.join(CLUSTERS)}")
        return shipped.requests(name, values) if self.shipped else values, package

    def is_config(self, config_path: str) -> bool:
        return (self.shipped or config_path != CONFIG) and self.file(config_path).is_file()

    def groups(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and path.name != "__pycache__")


def folder_of(folders: Iterable[Folder], name: str) -> Folder | None:
    """The first, and so the strongest, of the folders that has a file."""
    return next((folder for folder in folders if folder.is_config(name)), None)


def flat_list(folders: Sequence[Folder], choices: Mapping[str, str]) -> list[tuple[str, str]] | None:
    """What `hydra_defaults.defaults_list` returns where no chosen file chooses others: the files in the order of
    their groups. None where that takes Hydra, whose import takes longer than all the rest of a composition."""
    usual = {**folders[-1].choices, **dict.fromkeys(UNCHOSEN)}
    chosen = [(CONFIG, "")]
    for group, choice in {**usual, **choices}.items():
        if group not in usual or choice is None:
            continue
        path = f"{group}/{choice}"
        if (folder := folder_of(folders, path)) is None:
            return None
        keys, package = folder.chosen_by(path)
        if "defaults" in keys or package not in (None, "_global_"):
            return None
        chosen.append((path, "" if package else group))
    return None if choices.keys() - usual.keys() else chosen


def _choices(path: Path, defaults: list[Any], places: Mapping[str, SourceLine]) -> dict[str, SourceLine]:
    """The file of each group that a config.yaml's `defaults` choose. Raises `UsageError`."""
    choices: dict[str, SourceLine] = {}
    for index, item in enumerate(defaults):
        group, choice = next(iter(item.items())) if isinstance(item, dict) else (str(item), None)
        if group == "_self_" or (choice is None and group in UNCHOSEN):
            continue
        place = places.get(f"defaults[{index}]") or SourceLine(path, 0, "")  # a shipped file's lines are not counted
        if group not in REQUIRED_GROUPS or not isinstance(choice, str):
            raise refused(
                path, place.line, f"defaults may choose from {', '.join(REQUIRED_GROUPS)}, as `- cluster: slurm`"
            )
        choices[group] = place._replace(text=choice)
    return choices


def applying(values: Mapping[str, Any], recipe: Any, cluster: Any, container: Any, profile: Any) -> dict[str, Any]:
    """Those of the values that a job has a key for: one of this recipe, on this kind of cluster, in this container or
    none, under this profiler or none. What no job has a key for stays, to be refused."""
    kept = dict(values)

    def leave_out(group: str, kinds: Iterable[Any], own: Any = None) -> None:
        if isinstance(kept.get(group), dict):
            others = {key for kind in kinds for key in fields_of(kind)} - set(fields_of(own) if own else ())
            kept[group] = {key: value for key, value in kept[group].items() if key not in others}

    leave_out("cluster", CLUSTERS.values(), CLUSTERS.get(cluster))
    if profile == "none":
        leave_out("profile", [Profile])
    if container == "none":
        leave_out("container", [Container])
        for key in ("image", "image_is", "mounts"):
            kept.pop(key, None)
    if recipe in NAMES:
        leave_out("train", (find(name).settings for name in NAMES), find(recipe).settings)
        takes = find(recipe).takes or TRAINING_KEYS
        for key in set(TRAINING_KEYS) - set(takes):
            kept.pop(key, None)
    return kept
