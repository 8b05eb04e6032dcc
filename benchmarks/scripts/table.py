"""The rows of `scripts.yaml`, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROWS = Path(__file__).parent / "scripts.yaml"
VERDICTS = ("contradicted", "unknown", "refused")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A script that somebody else wrote, and how it is run. The keys are described in the package's docstring."""

    name: str
    about: str
    script: str
    losses: str
    requirements: Sequence[str] = ()
    repository: str = ""
    commit: str = ""
    package: str = ""
    folders: Sequence[str] = ()
    folder: str = "."
    inputs: str = ""
    edits: Sequence[tuple[str, str, str]] = ()
    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    own: Mapping[str, object] = field(default_factory=dict)
    right: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modes: Sequence[str] = ()
    halves: Sequence[Sequence[str]] = ()

    @property
    def source(self) -> str:
        """Where the script is from, and its version."""
        if self.package:
            return next(pin for pin in self.requirements if pin.split("==")[0] == self.package)
        return f"{self.repository.removeprefix('https://github.com/')}@{self.commit[:8]}"


def read(file: Path) -> dict[str, Row]:
    """The rows by name; keys that begin with a dot hold what several rows share. Raises `ValueError`."""
    rows = {}
    for name, given in yaml.safe_load(file.read_text(encoding="utf-8")).items():
        if name.startswith("."):
            continue
        try:
            row = Row(name=name, **given)
        except TypeError as error:
            raise ValueError(f"{file}: {name}: {error}") from None
        _check(row, file)
        rows[name] = row
    return rows


def _check(row: Row, file: Path) -> None:
    if not re.fullmatch(r"[\w.-]+", row.name) or row.name.startswith("."):
        wrong = "its name may hold letters, digits, dots and dashes"
    elif bool(row.package) == bool(row.repository):
        wrong = "it needs a package or a repository"
    elif row.repository and not re.fullmatch(r"[0-9a-f]{40}", row.commit):
        wrong = "a repository needs the 40 digits of its commit"
    elif unpinned := [pin for pin in row.requirements if "==" not in pin]:
        wrong = f"{unpinned[0]} is not pinned; write NAME==VERSION"
    elif row.package and row.package not in [pin.split("==")[0] for pin in row.requirements]:
        wrong = f"its requirements don't pin {row.package}"
    elif re.compile(row.losses).groups != 1:
        wrong = "losses needs one group"
    elif bool(row.modes) != (len(row.halves) == 2):
        wrong = "modes needs halves, the arguments of a run that is cut short and of the one that resumes it"
    elif any(len(right) != 2 or right[0] not in VERDICTS for right in row.right.values()):
        wrong = f"right needs a mode, then one of {', '.join(VERDICTS)}, and the reason"
    else:
        return
    raise ValueError(f"{file}: {row.name}: {wrong}")
