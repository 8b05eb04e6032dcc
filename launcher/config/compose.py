"""From chosen files to one configuration: Hydra's defaults list over `conf/` and the folders of a site or a person."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amp_launcher.precision.levels import LEVELS
from amp_launcher.typed import leaves, not_a_choice
from launcher.config.parse import Override
from launcher.config.paths import conf_folder, names_in
from launcher.config.schema import GROUPS
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.config.files import SourceLine
    from launcher.config.folders import Defaults, Folder

SHIPPED = "conf/"
"""What the names of the package's own files begin with."""


class File(NamedTuple):
    """One of the files that make up a configuration."""

    name: str
    """As a person knows it, and what chose it."""
    path: Path
    prefix: str
    """What its keys stand under, as `cluster.`; empty for none."""
    values: Mapping[str, Any]
    """By dotted key, with the prefix."""


class Composed(NamedTuple):
    """A configuration made of chosen files."""

    config: dict[str, Any]
    """Plain values, `${...}` and all."""
    files: Sequence[File] = ()
    """What it is made of; later ones win."""
    places: Mapping[str, SourceLine] = {}
    """Where its values stand in people's own files, by dotted key, of items as `mounts[0]`."""


@dataclass(kw_only=True)
class Composer:
    """Configurations from the given folders and `conf/`; an earlier folder overrides a later one."""

    config_dirs: Sequence[Path] = ()

    @functools.cached_property
    def _folders(self) -> list[Folder]:
        from launcher.config.folders import Folder

        for folder in self.config_dirs:
            if not folder.is_dir():
                raise UsageError(f"--config-dir {folder} is not a folder")
        return [Folder(folder.absolute()) for folder in (*self.config_dirs, conf_folder())]

    def groups(self) -> tuple[str, ...]:
        """Groups that can be chosen: ours, and any that a user's folder adds."""
        return tuple(dict.fromkeys([*GROUPS, *sorted({name for folder in self._folders for name in folder.groups()})]))

    def choices(self, group: str) -> list[str]:
        """The files of a group by name, levels of precision before the other names of modes."""
        return sorted(names_in(group, self.config_dirs), key=lambda name: (name not in LEVELS, name))

    @functools.cached_property
    def _defaults(self) -> list[Defaults]:
        """The config.yaml of each folder, the weakest first: `conf/`. Raises `UsageError`."""
        from launcher.config.files import refused

        layers = [folder.defaults for folder in reversed(self._folders) if folder.defaults]
        for own in layers[1:]:
            for group, choice in own.choices.items():
                if choice.text not in self.choices(group):
                    message = not_a_choice(group, choice.text, self.choices(group))
                    raise refused(own.path, choice.line, message)
        return layers

    @functools.cached_property
    def _chosen(self) -> dict[str, SourceLine]:
        """The file of each group that holds where no word chooses one, and the config.yaml that chooses it: the
        shipped one unless another chooses another file."""
        usual, *own = (layer.choices for layer in self._defaults)
        chosen = dict(usual)
        for choices in own:
            chosen |= {group: choice for group, choice in choices.items() if choice.text != usual[group].text}
        return chosen

    def compose(self, chosen: Sequence[Override]) -> Composed:
        """The configuration of chosen files, of each group one. Raises `UsageError`."""
        from launcher.config.folders import applying

        try:
            self._folders[-1].choices = {group: choice.text for group, choice in self._chosen.items()}
            values, files = self._merge(chosen)
            kinds = [select(values, key) for key in ("recipe", "cluster.kind", "container.kind", "profile.tool")]
            config, beneath = dict[str, Any](), []
            for layer in filter(lambda layer: layer.values, self._defaults):  # the weakest first
                own = applying(layer.values, *kinds)
                merge(config, own)
                beneath.append(File(_shown(layer.path), layer.path, "", leaves(own)))
            merge(config, values)
        except RecursionError:
            raise UsageError("the configuration can't be composed: its files choose each other in a circle") from None
        files = [*beneath, *files]
        return Composed(config, files, _places(files) if self.config_dirs else {})

    def _merge(self, chosen: Sequence[Override]) -> tuple[dict[str, Any], list[File]]:
        """The chosen files merged, and the files themselves."""
        from launcher.config.folders import folder_of

        config, files = dict[str, Any](), []
        typed = {choice.key for choice in chosen}
        for path, package in self._defaults_list(chosen):
            folder = folder_of(self._folders, path)
            if folder is None:
                continue
            values = under(package, folder.values(path))
            merge(config, values)
            shown = _shown(file := folder.file(path))
            group, _, choice = path.rpartition("/")
            by = self._chosen.get(group)
            if by and by.line and by.text == choice and group not in typed:
                shown = f"{shown}, chosen in {by}"
            files.append(File(shown, file, f"{package}." if package else "", leaves(values)))
        return config, files

    def _defaults_list(self, chosen: Sequence[Override]) -> list[tuple[str, str]]:
        from launcher.config.folders import flat_list

        if not any(choice.prefix in ("+", "~") for choice in chosen):
            by_group = {choice.key: choice.values[0] for choice in chosen if choice.values != (None,)}
            if (flat := flat_list(self._folders, by_group)) is not None:
                return flat
        from launcher.config.hydra_defaults import defaults_list

        return defaults_list(self._folders, filter(None, map(spelled, chosen)))


def spelled(choice: Override) -> str:
    """The choice of a file as Hydra spells it; empty for that of none."""
    if choice.prefix == "~":
        return choice.typed
    return "" if choice.values == (None,) else f"{'+' * (choice.prefix == '+')}{choice.key}={choice.values[0]}"


def merge(config: dict[str, Any], values: Mapping[str, Any], *, missing: bool = True) -> None:
    """Set values in a configuration as OmegaConf merges: mappings merge, all else replaces. With `missing`, `???` takes
    no value away. The values stay as they are."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if not isinstance(config.get(name), dict):
                config[name] = {}
            merge(config[name], value, missing=missing)
        elif not missing or value != "???" or name not in config:
            config[name] = copy.deepcopy(value)


def under(key: str, value: Any) -> Any:
    """The value under a dotted key, as a configuration has it; of no key the value itself."""
    for name in reversed(key.split(".")) if key else ():
        value = {name: value}
    return value


def select(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, resolved; None where there is none. Raises `UsageError`."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and "${" in value:
            from omegaconf import OmegaConf
            from omegaconf.errors import OmegaConfBaseException

            from launcher.config.files import refusal

            try:
                return OmegaConf.select(OmegaConf.create(dict(config)), key)
            except OmegaConfBaseException as error:
                raise refusal(error) from None
    return value


def _shown(path: Path) -> str:
    """A file as a person knows it: in full, those of the package from `conf/` on."""
    conf = conf_folder()
    return f"{SHIPPED}{path.relative_to(conf)}" if path.is_relative_to(conf) else str(path)


def _places(files: Sequence[File]) -> dict[str, SourceLine]:
    """Where the values of people's own files stand, where no later file of `conf/` has the key."""
    from launcher.config.files import places

    by_key: dict[str, SourceLine] = {}
    for file in files:
        for key in file.values:
            by_key.pop(key, None)
        if not file.name.startswith(SHIPPED):
            by_key.update((f"{file.prefix}{key}", place) for key, place in places(file.path).items())
    return by_key
