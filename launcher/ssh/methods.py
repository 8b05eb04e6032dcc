"""The requests that a host answers: name, function on the host, limits of the answer.

A function takes the request's arguments by keyword, and `data` for bytes. It returns a JSON value, or is a generator of
objects and bytes, sent as they come. What it prints to stderr is printed here, and a `LauncherError` that it raises is
raised here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.runs.store import ARMS, BLOCK, ENDED, FAILED


class Request(NamedTuple):
    """One request."""

    function: str
    """`module:name` on the host."""
    seconds: float = 60.0
    """Deadline of the answer, or of each of its parts."""
    size: int = 2**20
    """Bytes of the answer, or of each of its objects."""


REQUESTS = {
    "hello": Request("launcher.executors.ssh.handlers:hello", seconds=30.0),
    "probe": Request("launcher.executors.ssh.handlers:probe", seconds=180.0, size=2**23),
    "examine": Request("launcher.executors.ssh.handlers:examine", seconds=180.0),
    "has_code": Request("launcher.executors.ssh.submit_server:has_code", seconds=180.0),
    "lay_code": Request("launcher.executors.ssh.submit_server:lay_code", seconds=600.0),
    "make_environment": Request("launcher.executors.ssh.handlers:make_environment", seconds=120.0),
    "submit": Request("launcher.executors.ssh.submit_server:submit", seconds=600.0),
    "look": Request("launcher.executors.ssh.handlers:look", seconds=90.0, size=2**25),
    "log": Request("launcher.executors.ssh.handlers:log"),
    "request_stop": Request("launcher.executors.ssh.handlers:request_stop"),
    "cancel": Request("launcher.executors.ssh.handlers:cancel", seconds=180.0),
    "resume": Request("launcher.executors.ssh.handlers:resume", seconds=600.0),
    "verify": Request("launcher.executors.ssh.handlers:verify", seconds=600.0),
    "remove": Request("launcher.executors.ssh.handlers:remove", seconds=600.0),
    "sizes": Request("launcher.executors.ssh.handlers:sizes", seconds=180.0),
    "contents": Request("launcher.executors.ssh.handlers:contents", seconds=180.0, size=2**25),
    "files": Request("launcher.executors.ssh.handlers:files", seconds=600.0),  # it may hash what is here already, first
}
WITHOUT_PYTHON = "launcher.executors.ssh.bash_host:answer"
"""`module:name` of what answers the same through bash, for a host without a Python of ours."""

LONGEST_ERROR = 2**14
"""Characters of an error."""
MOST_FILES = 200_000
"""Files of one run that are fetched."""
SMALL = ("plan.json", "submission.json", "status.json", "result.json", "provenance.json")
"""Files of a run that are copied to whoever looks at it."""
METRICS = "metrics.jsonl"
LONGEST_SMALL = 2**21
"""Bytes of a file that an answer to `look` copies; `fetch` brings longer ones."""
MOST_ATTEMPTS = 1000
"""Attempts in one answer, the newest; their numbers may be larger."""


def of_run(numbers: Iterable[int], arms: Iterable[str], *, ended: bool) -> list[str]:
    """Files with the state of a run and of a comparison's arms; metrics of arms only at the end."""
    of_arm = (*SMALL, FAILED, BLOCK, *((METRICS,) if ended else ()))
    own = [*SMALL, *(f"attempts/{number}/{name}" for number in numbers for name in ("stopped.json", ENDED))]
    return [*own, *(f"{ARMS}/{arm}/{name}" for arm in arms for name in of_arm)]
