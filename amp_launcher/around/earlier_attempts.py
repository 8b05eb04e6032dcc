"""What the attempts at a user's script observed that did not fail: the result and the proof are those of all attempts.

A recipe keeps the same in its checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_launcher.precision.findings import CONTRADICTED
from amp_launcher.run_folder import RunFolder, write_json

FILE = "reports.json"
"""Of an attempt's folder."""
MOST_BYTES = 1 << 28
"""The most that is read of a record."""
_BEFORE = "in an earlier attempt: "

Reports = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What earlier attempts left."""

    reports: Sequence[tuple[int, Reports]] = ()
    """Attempts, and the reports of all their ranks by the steps of the run."""
    counted: str = ""
    """The name of what was counted."""
    contradicted: str = ""
    """Why the last of them was contradicted before it stopped."""
    lost: Sequence[str] = ()
    """Records that can't be read."""

    def observed(self, own: Reports, observed: Callable[[Reports], dict[str, Any]]) -> dict[str, Any]:
        """result.json's "observed" by the reports of this attempt and of the earlier ones; `observed` makes it of
        reports. What can't be judged of the earlier ones is left out and named."""
        usable, lost = Reports(), list(self.lost)
        for number, reports in self.reports:
            try:
                observed([*usable, *reports, *own])
            except Exception as error:  # whatever is wrong in the file, this attempt's result stays
                lost.append(_lost(f"what attempt {number} observed", _place(number), error))
            else:
                usable += reports
        result = observed([*usable, *own])
        if self.contradicted and result["verdict"] != CONTRADICTED:
            result |= {"verdict": CONTRADICTED, "why": self.contradicted}
        return {**result, "why": "; ".join([result["why"], *lost])}


def leave(folder: RunFolder, reports: Sequence[dict[str, Any]], counted: str) -> None:
    """Keep the reports of an attempt for the next, which may find nothing left to do."""
    write_json(folder.stopped.with_name(FILE), {"schema": 1, "reports": list(reports), "counted": counted})


def read(folder: RunFolder) -> Earlier:
    """Those of all attempts before this one. Most leave none."""
    found, counted, lost = [], "", []
    for number in range(1, folder.attempt):
        try:
            values = _read(folder.path / _place(number))
            if values is not None:
                found.append((number, [*values["reports"]]))
                counted = counted or str(values["counted"])
        except Exception as error:
            lost.append(_lost(f"what attempt {number} observed", _place(number), error))
    contradicted = ""
    try:
        contradicted = _contradicted(_read(folder.result))
    except Exception as error:
        lost.append(_lost("the verdict of an earlier attempt", folder.result.name, error))
    return Earlier(reports=found, counted=counted, contradicted=contradicted, lost=lost)


def _contradicted(result: Any) -> str:
    """Why the attempt of a result was contradicted, if it was and stopped."""
    if result is None or result["status"] != "stopped" or result["observed"]["verdict"] != CONTRADICTED:
        return ""
    why = str(result["observed"]["why"])
    return why if why.startswith(_BEFORE) else f"{_BEFORE}{why}"


def _read(path: Path) -> Any:
    """The values of a record; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return json.loads(text)


def _place(number: int) -> str:
    return f"attempts/{number}/{FILE}"


def _lost(what: str, place: str, error: Exception) -> str:
    return f"{what} is lost: {place} is damaged ({type(error).__name__}: {str(error)[:200]})"
