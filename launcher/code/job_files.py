"""The files of the training side that jobs run, and which scripts of users they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import amp_launcher
from amp_launcher import recipes
from amp_launcher.around.script import in_image
from amp_launcher.recipe import NAMES
from launcher.code import snapshot
from launcher.config.spec import JobSpec


def code_root() -> Path:
    """The package of the training side, wherever it is installed."""
    return Path(amp_launcher.__path__[0]).absolute()


def code_files(specs: Sequence[JobSpec] = ()) -> dict[str, Path]:
    """The files of the training side that the jobs run, by their names in the snapshot."""
    ours, *own = recipes.__path__
    linked = [Path(ours).resolve()] if Path(ours).is_symlink() else []  # in a checkout
    more = [Path(folder) for folder in own] if any(spec.recipe.name not in NAMES for spec in specs) else []
    files, *others = snapshot.collect(code_root(), *linked, *more)
    for other in others:  # of two files with one name, the launcher's own
        files = {**{f"{code_root().name}/{name}": path for name, path in other.items()}, **files}
    return files


def scripts(specs: Sequence[JobSpec]) -> list[str]:
    """The scripts of the jobs that are files of this machine, as they were named, each once."""
    names = (spec.launch.script for spec in specs)
    return list(dict.fromkeys(name for name in names if name and not in_image(name)))


def included(specs: Sequence[JobSpec], script: str) -> list[str]:
    """Patterns of ignored files to include with a script, of all jobs: they share a snapshot."""
    return sorted({pattern for spec in specs if spec.launch.script == script for pattern in spec.launch.include})
