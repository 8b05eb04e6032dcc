"""A host's answer about one run, as the client admits it; `run_answer` makes it there."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from launcher import admit, units
from launcher.admit import Refused
from launcher.runs import decode, states
from launcher.runs.log_pieces import PIECE
from launcher.runs.remote_record import Log, Stamp
from launcher.runs.states import State
from launcher.ssh.methods import LONGEST_SMALL, MOST_ATTEMPTS, of_run

CLOCKS = 2
"""Two clocks may differ by so many seconds before times are converted between them."""
LARGEST_METRICS = 2**32
"""Bytes of metrics of one run that are followed."""


_attempt = functools.partial(admit.whole, most=states.LARGEST_ATTEMPT, least=1)


def _content(value: Any, what: str, most: int) -> bytes:
    """The bytes of a file that was sent as text. Raises `Refused`."""
    try:
        content = admit.raw(value, what, most).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refused(f"{what} is not text") from None
    admit.whole(len(content), "the size of a file", most)
    return content


class File(NamedTuple):
    stamp: Stamp
    content: Annotated[bytes, functools.partial(_content, most=LONGEST_SMALL)]


class Metrics(NamedTuple):
    """A piece of a file of metrics, and where it belongs."""

    start: Annotated[int, admit.whole]
    content: Annotated[bytes, functools.partial(_content, most=PIECE)]


class Answer(NamedTuple):
    state: State
    time: Annotated[int, functools.partial(admit.whole, most=2**33)]
    """The host's, in seconds since 1970."""
    begun: bool
    """Whether it has the run."""
    attempts: Annotated[tuple[int, ...], admit.list_of(_attempt, MOST_ATTEMPTS)]
    files: Mapping[str, File]
    metrics: Mapping[str, Metrics] = {}
    step: Annotated[int, admit.whole] | None = None
    step_age: Annotated[int, admit.whole] | None = None
    """Seconds since that step."""
    idle: Annotated[int, admit.whole] | None = None
    """Seconds since a terminal was in it, 0 while one is; None for what `up` did not start."""
    age: Annotated[int, admit.whole] | None = None
    """Seconds since a scheduler was asked about it; None where its files were enough."""
    log: Log | None = None
    more: Annotated[bool, admit.flag] = False
    """There is more than fits into one answer."""


def admitted(value: Any, question: Mapping[str, Any], follow: bool) -> Answer | str:
    """The answer to a question of `remote_status`, or why the host could not look at the run. Raises `Refused`."""
    given = admit.group(value, "an answer about a run")
    if "error" in given:
        return admit.text(given["error"], "an error")
    metrics = admit.group(given.get("metrics"), "metrics") if follow else {}
    answer = decode.admitted(Answer, {**given, "metrics": metrics}, "its answer")
    asked = set(of_run(answer.attempts, question["arms"], ended=True))
    for name in answer.files:
        admit.choice(name, "a file", asked)
    for name, (start, content) in answer.metrics.items():
        have = question["metrics"][admit.choice(name, "a file of metrics", question["metrics"].keys())][0]
        if start not in (0, have):
            raise Refused(f"metrics begin at {start}, and {have} bytes of them are here")
        admit.whole(start + len(content), "the size of metrics", LARGEST_METRICS)
    some = bool(answer.files) or any(content for _, content in answer.metrics.values())
    return answer._replace(state=_by_our_clock(answer.state, answer.time), more=answer.more and some)


def _by_our_clock(state: State, there: int) -> State:
    """A live run, with its start by the clock here, which measures its time until now."""
    started, ahead = units.seconds_of(state.started), there - time.time()
    if state.finished or started is None or abs(ahead) < CLOCKS:
        return state
    return state._replace(started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started - ahead)))
