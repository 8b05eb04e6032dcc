"""A host's answer about one run: its state, its changed files, a piece of its log."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import safe_files, units
from launcher.runs import decode, log_tail, states, store, terminals
from launcher.runs import follow as follow_files
from launcher.runs.log_pieces import PIECE
from launcher.runs.schema import PlanRecord
from launcher.runs.states import Seen, State
from launcher.ssh.methods import LONGEST_SMALL, MOST_ATTEMPTS, of_run

ROOM = 2**22
"""Bytes of a run's files in one answer. Escaped as JSON they take up to six times as many."""


def status(seen: Seen, question: Mapping[str, Any], follow: bool) -> dict[str, Any]:
    """The state of a run, its small files that changed since `question`, and with `follow` its new metrics."""
    folder, state = seen.run.folder, seen.state
    last = None if state.finished else follow_files.last_step(str(folder))
    numbers = store.attempts(folder)[-MOST_ATTEMPTS:]
    answer: dict[str, Any] = {
        "state": plain(state),
        "time": round(time.time()),
        "begun": seen.files.submission is not None or seen.files.status is not None,
        "attempts": numbers,
        "files": {},
        "step": last.number if last else None,
        "step_age": max(0, round(time.time() - last.time)) if last and last.time is not None else None,
        "idle": _idle(folder, state),
        "age": None if seen.asked is None else max(0, round(time.time() - seen.asked)),
        "more": False,
    }
    room = ROOM
    for name in of_run(numbers, question["arms"], ended=state.finished):
        changed = _changed(folder, name, question["stamps"].get(name))
        if changed and len(changed[1]) > room:
            answer["more"] = True
        elif changed:
            answer["files"][name] = changed
            room -= len(changed[1])
    if state.name in ("failed", "lost"):
        path, lines = log_tail.read(folder, state.attempt)
        answer["log"] = [str(path), lines]
    if follow:
        answer["metrics"] = {}
        for name, have in question["metrics"].items():
            if room < PIECE:
                answer["more"] = True
                break
            answer["metrics"][name], more = _measured(folder / name, *have)
            answer["more"] = answer["more"] or more
            room -= len(answer["metrics"][name][1])
    return answer


def _idle(folder: Path, state: State) -> int | None:
    """Seconds since somebody used what `up` started, 0 while a terminal is open; None of another run."""
    if state.name != "running" or not store.read(PlanRecord, store.plan_path(folder), ("up",)).up:
        return None
    return round(terminals.idle(str(folder), units.seconds_of(state.started) or 0.0))


def plain(state: State) -> list[Any]:
    """A state that the client accepts. Raises `Refused` where the run's files are damaged."""
    reason = " ".join(state.reason.split())[: states.LONGEST_REASON]
    return list(decode.admitted(State, list(state._replace(reason=reason)), "a state"))


def _changed(folder: Path, name: str, known: Any) -> tuple[list[int], str] | None:
    """A small file with its size and time of change; None if it is unchanged, missing or too long."""
    held = os.path.relpath(store.plan_path(folder), folder) if name == "plan.json" else name
    try:
        with open(safe_files.open_in(folder, held), encoding="utf-8", errors="surrogateescape", newline="") as stream:
            status = os.fstat(stream.fileno())
            stamp = [status.st_size, status.st_mtime_ns]
            if known == stamp or status.st_size > LONGEST_SMALL:
                return None
            return stamp, stream.read(LONGEST_SMALL)
    except FileNotFoundError:
        return None


def _measured(path: Path, have: int, end: str) -> tuple[list[Any], bool]:
    """Where the new part of the metrics begins, the part, and whether there is more. `have` is how many bytes the
    client has, `end` a digest of the last ones: after a resumed run cut its metrics back, all of them are new."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, have - 256))
            if hashlib.sha256(stream.read(min(have, 256))).hexdigest() != end:
                have = 0
            stream.seek(have)
            part = stream.read(PIECE)
    except FileNotFoundError:
        return [0, ""], False
    if more := len(part) == PIECE:
        part = part[: part.rfind(b"\n") + 1] or part
    return [have, part.decode("utf-8", "surrogateescape")], more
