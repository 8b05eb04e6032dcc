"""What the stopped attempts of a user's script observed: the result and the proof are those of all attempts.

A recipe keeps the same in its checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from recipes.run_folder import RunFolder, write_json

FILE = "reports.json"
"""Of an attempt's folder."""


class Earlier(NamedTuple):
    """What earlier attempts left."""

    reports: list[dict[str, Any]]
    """Of all their ranks, by the steps of the run."""
    counted: str = ""
    """The name of what was counted."""


def leave(folder: RunFolder, reports: Sequence[dict[str, Any]], counted: str) -> None:
    """Keep the reports of an attempt that was asked to stop, for the next."""
    write_json(folder.stopped.with_name(FILE), {"schema": 1, "reports": list(reports), "counted": counted})


def read(folder: RunFolder) -> Earlier:
    """Those of all attempts before this one; a file that is damaged counts as none."""
    reports, counted = [], ""
    for number in range(1, folder.attempt):
        try:
            values = json.loads((folder.path / "attempts" / str(number) / FILE).read_text(encoding="utf-8"))
            reports += values["reports"]
            counted = counted or str(values["counted"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return Earlier(reports, counted)
