"""Paths as people type them, and the folders of configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import launcher
from launcher.errors import UsageError


def expanded(named: str) -> Path:
    """The path with its `~` or `~user` expanded. Raises `UsageError` for an unknown home folder."""
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise UsageError(f"{named}: there is no home folder to find it in; set HOME, or name paths in full") from None


VARIABLE = "LAUNCHER_CONFIG_DIR"


def own_folders() -> tuple[Path, ...]:
    """The folders of configuration that are read without a flag, the stronger first: LAUNCHER_CONFIG_DIR, and
    `amp-launcher` in the user's configuration. Raises `UsageError` if LAUNCHER_CONFIG_DIR is not a folder."""
    folders = []
    if named := os.environ.get(VARIABLE):
        folder = expanded(named).absolute()
        if not folder.is_dir():
            raise UsageError(f"{VARIABLE}={named} is not a folder")
        folders.append(folder)
    home = os.environ.get("XDG_CONFIG_HOME", "")
    usual = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.config"), "amp-launcher")
    if os.path.isdir(usual):
        folders.append(Path(usual))
    return tuple(folders)


def add_own_recipes(folder: Path) -> None:
    """Make the recipes that a folder of configuration has in `recipes/` known."""
    if (folder / "recipes").is_dir():
        from amp_launcher.recipe import add_folder

        add_folder((folder / "recipes").absolute())


def conf_folder() -> Path:
    """Where the shipped configuration lies: inside the installed package, or beside it in a checkout."""
    package = Path(launcher.__path__[0])
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def names_in(group: str, own: Iterable[Path] = ()) -> list[str]:
    """The names of a group's files, those in a person's `own` folders among them."""
    files = (path for folder in (conf_folder(), *own) for path in (folder / group).glob("[!.]*.yaml"))
    return sorted({path.stem for path in files if path.is_file()})
