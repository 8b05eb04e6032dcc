"""The arms of a comparison and their states, from its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.shown import show
from launcher import safe_files
from launcher.runs import run_files
from launcher.runs.run_files import Files
from launcher.runs.schema import PlanRecord, Status
from launcher.runs.states import State, of_status
from launcher.runs.store import ARMS, BLOCK, FAILED, Run

RESULT = "result.json"
LONGEST = 160
"""Characters of a reason; the arm's result and log have all of it."""
OUT_OF_MEMORY = "it ran out of memory"
KILLED = "it was killed by signal 9, by the system if memory ran out"


class Arm(NamedTuple):
    """One arm: its folder, and its label for people."""

    run: Run
    label: str


def of(folder: Path, plan: PlanRecord) -> list[Arm]:
    """The arms of the run in this folder, the control first; none of a plain run."""
    root = str(folder / ARMS)
    return [Arm(Run(root, arm.arm), label_of(arm.swept)) for arm in plan.arms]


def label_of(swept: Sequence[tuple[str, Any]]) -> str:
    """An arm's name if it was given one, else the settings in which it differs from the others."""
    if [key for key, _ in swept] == ["arm"]:
        return str(swept[0][1])
    return " ".join(f"{key}={show(value)}" for key, value in swept)


def state(arm: Run, comparison: State) -> State:
    """The state of an arm, given the state of its comparison. Between its blocks an arm counts as running."""
    files = run_files.load(str(arm.folder))
    failed = _failed(arm.folder)
    if failed:
        reason = failed if failed in (OUT_OF_MEMORY, KILLED) else files.failure or failed
        return _of(files, "failed", _brief(reason))
    status = (files.status or Status()).state
    if status == "done" and not _has_more_blocks(arm.folder):
        return _of(files, "done", "")
    if comparison.finished:
        name = comparison.name if comparison.name in ("failed", "cancelled", "lost") else "stopped"
        return _of(files, name, "" if status else "not measured")
    if status is None:
        return State("queued", "its first block")
    return _of(files, comparison.name, "" if status == "running" else "its next block comes")


def _of(files: Files, name: Any, reason: str) -> State:
    return of_status(name, reason, files.status or Status())


def _has_more_blocks(folder: Path) -> bool:
    """Whether more blocks follow the arm's newest one: a script is started afresh, and done, in each block."""
    try:
        number, count = map(int, safe_files.read_text(folder / BLOCK).split())
    except (OSError, ValueError):
        return False
    return number + 1 < count


def _brief(reason: str) -> str:
    """As it fits into a row."""
    if len(reason) <= LONGEST:
        return reason
    clause, more, _ = reason.partition("; ")
    return clause if more and len(clause) <= LONGEST else f"{clause[:LONGEST].rstrip()}..."


def _failed(folder: Path) -> str:
    try:
        text = safe_files.read_text(folder / FAILED).strip()
    except OSError:
        return ""
    code = re.fullmatch("exit code ([0-9]{1,3})", text)
    if code and 128 < int(code[1]) <= 192:  # there are 64 signals
        return f"its trainer was killed by signal {int(code[1]) - 128}"
    return {"out of memory": OUT_OF_MEMORY, "killed": KILLED}.get(text, f"its trainer ended with {text}")
