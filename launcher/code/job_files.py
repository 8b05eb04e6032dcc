"""The files of the training side that jobs run, and which scripts of users they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import recipes
from launcher.code import snapshot
from launcher.config.spec import JobSpec
from recipes.recipe import NAMES
from recipes.script import in_image


def code_root() -> Path:
    """The package of the training side, wherever it is installed."""
    return Path(recipes.__path__[0]).absolute()


def code_files(specs: Sequence[JobSpec] = ()) -> dict[str, Path]:
    """The files of the training side that the jobs run, by their names in the snapshot."""
    files = snapshot.collect(code_root())
    if any(spec.recipe.name not in NAMES for spec in specs):
        for folder in list(recipes.__path__)[1:]:
            files = {**snapshot.collect(Path(folder)), **files}  # of two with one name, the launcher's own
    return files


def scripts(specs: Sequence[JobSpec]) -> list[str]:
    """The scripts of the jobs that are files of this machine, as they were named, each once."""
    names = (spec.launch.script for spec in specs)
    return list(dict.fromkeys(name for name in names if name and not in_image(name)))


def included(specs: Sequence[JobSpec], script: str) -> list[str]:
    """Patterns of ignored files to include with a script, of all jobs: they share a snapshot."""
    return sorted({pattern for spec in specs if spec.launch.script == script for pattern in spec.launch.include})
