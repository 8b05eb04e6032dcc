"""The image recipes that come with the launcher: in `recipes/`, a Dockerfile and a Singularity definition of each.

The launcher is not in these images: its code is mounted at the start.
"""

from __future__ import annotations

import pkgutil
from typing import Literal

from amp_launcher.typed import SettingsError, nearest

Format = Literal["docker", "singularity"]
SUFFIXES: dict[Format, str] = {"docker": "Dockerfile", "singularity": "def"}
"""Format -> suffix of a recipe's file."""
RECIPES = ("pytorch", "tensorflow", "paddle", "interactive", "cpu")
"""One for each framework, one with an SSH server, one without GPUs."""


def text(name: str, format: Format) -> str:
    """A recipe's file, which begins with the command that builds it. Raises `SettingsError` naming the recipes there
    are."""
    if name not in RECIPES:
        raise SettingsError(f"there is no image recipe {name} ({', '.join(RECIPES)}){nearest(name, RECIPES)}", "image")
    data = pkgutil.get_data("launcher.containers", f"recipes/{name}.{SUFFIXES[format]}")
    assert data is not None, f"recipes/{name}.{SUFFIXES[format]} is missing"
    return data.decode()
