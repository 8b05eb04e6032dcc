"""The one place that touches Hydra's configuration loader: from words to a composed configuration, and its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from launcher.config.paths import conf_folder
from launcher.config.schema import GROUPS, leaves
from launcher.errors import UsageError
from recipes.typed import not_a_choice


class File(NamedTuple):
    """One of the files that make up a configuration."""

    name: str
    """As a person knows it: in full, those of the package from `conf/` on."""
    path: Path
    prefix: str
    """What its keys stand under, as `cluster.`; empty for none."""
    values: Mapping[str, Any]
    """By dotted key, with the prefix."""


class Place(NamedTuple):
    """Where a value stands in a person's own file."""

    file: str
    line: int
    text: str
    """What is written there; empty for a list or mapping."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(kw_only=True)
class Composer:
    """Hydra over this project's `conf/` and the user's own configuration folders."""

    config_dirs: Sequence[Path] = ()
    _loader: Any = field(default=None, init=False)
    _chosen: dict[tuple[str, ...], Any] = field(default_factory=dict, init=False)
    """The files of each configuration that was composed, by its words."""
    _own: list[Any] | None = field(default=None, init=False)
    """What the folders' config.yaml say, the weakest first."""
    _applied: dict[tuple[str, ...], list[tuple[Path, dict[str, Any]]]] = field(default_factory=dict, init=False)
    """What of it holds for each configuration that was composed, by its words."""
    _places: dict[tuple[str, ...], Mapping[str, Place]] = field(default_factory=dict, init=False)

    @property
    def loader(self) -> Any:
        if self._loader is None:
            # What `hydra.initialize` and `compose` stand on, without their process-wide state.
            from hydra._internal.config_loader_impl import ConfigLoaderImpl
            from hydra._internal.utils import create_config_search_path

            path = create_config_search_path(str(conf_folder()))
            for folder in self.config_dirs:
                if not folder.is_dir():
                    raise UsageError(f"--config-dir {folder} is not a folder")
                path.prepend("command-line", f"file://{folder.absolute()}", anchor="schema")
            self._loader = ConfigLoaderImpl(config_search_path=path)
            if self.config_dirs:
                from launcher.config.files import Repository

                self._loader.repository = Repository(path)
                self._loader.repository.trusted = str(conf_folder())
        return self._loader

    def groups(self) -> tuple[str, ...]:
        """Groups that can be chosen: ours, and any that a user's folder adds."""
        from hydra.core.object_type import ObjectType

        found = self.loader.repository.get_group_options("", ObjectType.GROUP)
        return tuple(dict.fromkeys([*GROUPS, *(group for group in found if group != "hydra")]))

    def choices(self, group: str) -> list[str]:
        from hydra.core.object_type import ObjectType

        return list(self.loader.repository.get_group_options(group, ObjectType.CONFIG))

    def compose(self, words: Sequence[str]) -> Any:
        """The composed, unresolved configuration. Raises `UsageError` with Hydra's first line where it refuses.

        As `load_configuration` does it, but without Hydra's own settings, which take three quarters of its time and
        have no effect here.
        """
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            chosen, files = self._choose(words)
            config = self.loader._compose_config_from_defaults_list(defaults=chosen.defaults, repo=files)
            OmegaConf.set_struct(config, True)
            self.loader._apply_overrides_to_config(chosen.config_overrides, config)
        except (HydraException, OmegaConfBaseException) as error:
            reason = str(error).splitlines()[0]
            if nothing := re.match(r"Could not delete (?:from config\. )?'([^']*)'", reason):
                raise UsageError(f"~{nothing[1]} has nothing to take back: no file sets it (command line)") from None
            raise UsageError(f"the configuration can't be composed: {reason}") from None
        except RecursionError:
            raise UsageError("the configuration can't be composed: its files choose each other in a circle") from None
        OmegaConf.set_struct(config, False)
        config.pop("hydra", None)
        return self._over_own(config, tuple(words)) if self.config_dirs else config

    def own(self) -> list[Any]:
        """What the folders' config.yaml say, the weakest first. Raises `UsageError`."""
        if self._own is None:
            from launcher.config import files as config_files

            found = (config_files.defaults(folder) for folder in reversed(self.config_dirs))
            self._own = [each for each in found if each is not None]
            for each in self._own:
                for group, choice in each.choices.items():
                    if choice.text not in self.choices(group):
                        said = not_a_choice(group, choice.text, self.choices(group))
                        raise config_files.refused(each.path, choice.line, said)
        return self._own

    def _over_own(self, config: Any, words: tuple[str, ...]) -> Any:
        """The configuration, with what config.yaml says beneath it: a file that was chosen knows better."""
        from omegaconf import OmegaConf

        from launcher.config.files import applying

        kinds = (OmegaConf.select(config, key) for key in ("recipe", "cluster.kind", "container.kind"))
        recipe, cluster, container = kinds
        applied = [(each.path, applying(each.values, recipe, cluster, container)) for each in self.own()]
        self._applied[words] = applied
        return OmegaConf.merge(*(values for _, values in applied), config) if applied else config

    def _own_choices(self, words: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The groups that config.yaml chooses for, and no word does: the file of each, and where that is said."""
        if not self.config_dirs:
            return {}
        typed = {re.split("[=@]", word.lstrip("+~"))[0] for word in words}
        found = {}
        for each in self.own():
            for group, choice in each.choices.items():
                if group not in typed:
                    found[group] = (choice.text, f"{each.path}:{choice.line}")
        return found

    def _choose(self, words: Sequence[str]) -> tuple[Any, Any]:
        """Hydra's list of the files that make up a configuration, and where it reads them."""
        from hydra._internal.defaults_list import create_defaults_list

        own = [f"{group}={choice}" for group, (choice, _) in self._own_choices(words).items()]
        parsed, files = self.loader._parse_overrides_and_create_caching_repo("config", [*own, *words])
        chosen = create_defaults_list(files, "config", parsed, prepend_hydra=False, skip_missing=False)
        self._chosen[tuple(words)] = chosen.defaults
        return chosen, files

    def places(self, words: Sequence[str]) -> Mapping[str, Place]:
        """Where the values of a configuration stand in people's own files, by dotted key, of items as `mounts[0]`."""
        if not self.config_dirs:
            return {}
        if tuple(words) not in self._places:
            from launcher.config import files as config_files

            found: dict[str, Place] = {}
            for file in self.files(words):
                for key in file.values:
                    found.pop(key, None)
                if not file.name.startswith(SHIPPED):
                    for key, written in config_files.written(file.path).items():
                        found[f"{file.prefix}{key}"] = Place(str(file.path), written.line, written.text)
            self._places[tuple(words)] = found
        return self._places[tuple(words)]

    def files(self, words: Sequence[str]) -> Iterator[File]:
        """The files that make up a configuration, in the order in which later ones win."""
        from omegaconf import OmegaConf

        if tuple(words) not in self._chosen:
            self._choose(words)
        for path, values in self._applied.get(tuple(words), ()):
            yield File(str(path), path, "", dict(leaves(values)))
        by = {group: place for group, (_, place) in self._own_choices(words).items()}
        for default in self._chosen[tuple(words)]:
            if default.config_path is None:
                continue
            loaded = self.loader.repository.load_config(default.config_path)
            if loaded is None:
                continue
            content = OmegaConf.to_container(loaded.config, resolve=False)
            if isinstance(content, dict):
                content.pop("defaults", None)
                package = default.package or ""
                prefix = "" if package in ("", "_global_") else f"{package}."
                place = str(loaded.path).removeprefix("file://")
                named = {str(name): value for name, value in content.items()}
                name = f"{default.config_path}.yaml"
                shown = SHIPPED if place == str(conf_folder()) else f"{place}/"
                chosen = by.get(default.config_path.rpartition("/")[0])
                shown = f"{shown}{name}{f', chosen in {chosen}' if chosen else ''}"
                yield File(shown, Path(place, name), prefix, dict(leaves(named, prefix)))


SHIPPED = "conf/"
"""What the names of the package's own files begin with."""
