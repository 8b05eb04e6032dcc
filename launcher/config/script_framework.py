"""The framework of a user's script from its imports, where the configuration names none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.config import script_text
from launcher.config.parse import Override
from launcher.config.paths import expanded
from launcher.config.sweep import Cell
from launcher.errors import UsageError
from recipes.script import in_image
from recipes.settings import Settings


def with_frameworks(cells: Iterable[Cell]) -> list[Cell]:
    """The cells; those that name no framework get the one that their script imports.

    Raises `UsageError` for a script that imports several.
    """
    read: dict[Path, dict[str, str]] = {}
    return [_with_framework(cell, read) for cell in cells]


def _with_framework(cell: Cell, read: dict[Path, dict[str, str]]) -> Cell:
    path = _script(cell.config)
    if path is None or cell.config.get("framework"):
        return cell
    if path not in read:
        read[path] = script_text.frameworks(path)
    packages = read[path]
    if len(packages) > 1:
        choices = " or ".join(f"framework={name}" for name in sorted(packages))
        raise UsageError(
            f"{path.name} uses {' and '.join(sorted(packages.values()))}; say which of them trains: {choices}"
        )
    framework = next(iter(packages), Settings().framework)
    if not packages:
        note = f"no import of a framework was found in {path.name}; framework={framework} is assumed"
    elif framework == Settings().framework:
        return cell
    else:
        note = f"framework={framework}, as {path.name} imports {packages[framework]}"
    word = Override(
        typed=f"framework={framework}",
        prefix="",
        key="framework",
        kind="value",
        values=(framework,),
        source=f"imports of {path.name}",
    )
    notes = [*(cell.config.get("notes") or ()), note]
    return dataclasses.replace(
        cell, config={**cell.config, "framework": framework, "notes": notes}, words=(*cell.words, word)
    )


def _script(config: Mapping[str, Any]) -> Path | None:
    """The script of a job to which the launcher applies a mode; None where it is not on this machine."""
    script, train = config.get("script"), config.get("train")
    bare = isinstance(train, Mapping) and train.get("bare") is True
    if config.get("recipe") != "script" or bare or not isinstance(script, str) or in_image(script):
        return None
    path = expanded(script)
    return path.resolve() if os.path.isfile(path) else None
