"""A host's answer about one run, as the client admits it; `run_answer` makes it there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher import admit, units
from launcher.admit import Refused
from launcher.runs import remote_record, states
from launcher.runs.log_pieces import PIECE
from launcher.runs.states import State
from launcher.ssh.methods import LONGEST_SMALL, MOST_ATTEMPTS, of_run

CLOCKS = 2
"""Seconds by which two clocks may differ before a time of one is shown as one of the other."""
LARGEST_METRICS = 2**32
"""Bytes of metrics of one run that are followed."""


class Answer(NamedTuple):
    """A host's checked answer about one run."""

    state: State
    begun: bool = True
    """Whether it has the run."""
    attempts: Sequence[int] = ()
    files: Sequence[tuple[str, bytes, list[int]]] = ()
    """Name, content, stamp."""
    metrics: Sequence[tuple[str, int, bytes]] = ()
    """Name, where the content belongs, content."""
    step: int | None = None
    step_age: int | None = None
    """Seconds since that step."""
    age: int | None = None
    """Seconds since a scheduler was asked about it; None where its files were enough."""
    log: tuple[str, tuple[str, ...]] | None = None
    more: bool = False
    """There is more than fits into one answer."""
    failed: bool = False
    """The host could not look at the run."""


def admitted(value: Any, question: Mapping[str, Any], follow: bool) -> Answer:
    """The answer to a question of `remote_status`. Raises `Refused`."""
    answer = admit.group(value, "an answer about a run")
    if "error" in answer:
        return Answer(State("unreachable", admit.text(answer["error"], "an error")), failed=True)
    admit.group(answer, "an answer about a run", "state", "time", "begun", "attempts", "files", *(["metrics"] * follow))
    numbers = [
        admit.whole(number, "an attempt", states.LARGEST_ATTEMPT, least=1)
        for number in admit.items(answer["attempts"], "attempts", MOST_ATTEMPTS)
    ]
    asked = set(of_run(numbers, question["arms"], ended=True))
    files, metrics = [], []
    for name, entry in admit.group(answer["files"], "files").items():
        stamp, text = admit.items(entry, "a file", 2, least=2)
        files.append(
            (admit.choice(name, "a file", asked), _content(text, LONGEST_SMALL), remote_record.admitted_stamp(stamp))
        )
    for name, entry in admit.group(answer["metrics"], "metrics").items() if follow else ():
        start, text = admit.items(entry, "metrics", 2, least=2)
        have = question["metrics"][admit.choice(name, "a file of metrics", question["metrics"].keys())][0]
        if admit.whole(start, "where metrics begin") not in (0, have):
            raise Refused(f"metrics begin at {start}, and {have} bytes of them are here")
        content = _content(text, PIECE)
        admit.whole(start + len(content), "the size of metrics", LARGEST_METRICS)
        metrics.append((name, start, content))
    return Answer(
        state=_by_our_clock(states.admitted(answer["state"]), admit.whole(answer["time"], "its time", 2**33)),
        begun=admit.flag(answer["begun"], "begun"),
        attempts=numbers,
        files=files,
        metrics=metrics,
        step=remote_record.admitted_step(answer.get("step")),
        step_age=None if answer.get("step_age") is None else admit.whole(answer["step_age"], "the age of a step"),
        age=None if answer.get("age") is None else admit.whole(answer["age"], "the age of an answer"),
        log=remote_record.admitted_log(answer.get("log")),
        more=admit.flag(answer.get("more", False), "more") and bool(files or any(content for _, _, content in metrics)),
    )


def _by_our_clock(state: State, there: int) -> State:
    """A run that goes on, with its start by the clock here, where its time until now is counted."""
    started, ahead = units.seconds_of(state.started), there - time.time()
    if state.finished or started is None or abs(ahead) < CLOCKS:
        return state
    return state._replace(started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started - ahead)))


def _content(text: Any, longest: int) -> bytes:
    """The bytes of a file that was sent as text. Raises `Refused`."""
    try:
        content = admit.raw(text, "the content of a file", longest).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refused("the content of a file is not text") from None
    admit.whole(len(content), "the size of a file", longest)
    return content
