"""The part of Hydra that decides which files make up a configuration, and all of its private names that are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.files import refusal
from launcher.config.folders import Folder
from launcher.config.shipped import CONFIG


def defaults_list(folders: Sequence[Folder], words: Iterable[str]) -> list[tuple[str, str]]:
    """The files that make up the configuration of words such as `amp=o2`, and the group that the keys of each stand
    under; later ones win. Raises `UsageError` with the first line of Hydra's refusal."""
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
        chosen = create_defaults_list(_Repository(folders), CONFIG, overrides, prepend_hydra=False, skip_missing=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise refusal(error) from None
    packages = (default.package if default.package != "_global_" else None for default in chosen.defaults)
    paths = (default.config_path or "" for default in chosen.defaults)
    return [(path, package or "") for path, package in zip(paths, packages, strict=True) if path]


class _Source(ConfigSource):
    """A folder as Hydra reads it: of each file no more than the files that it chooses."""

    def __init__(self, folder: Folder) -> None:
        super().__init__("launcher", f"file://{folder.folder}")
        self.folder = folder

    @staticmethod
    def scheme() -> str:
        return "file"

    def load_config(self, config_path: str) -> ConfigResult:
        chosen, package = self.folder.chosen_by(config_path.removesuffix(".yaml"))
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(chosen), {"package": package})

    def is_group(self, config_path: str) -> bool:
        return (self.folder.folder / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self.folder.is_config(config_path)

    def available(self) -> bool:
        return self.folder.folder.is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []  # Hydra lists choices below the first line of a refusal, which nobody sees


class _Repository(ConfigRepository):
    def __init__(self, folders: Sequence[Folder]) -> None:
        self.sources = list(map(_Source, folders))
