"""What a host can be asked: the name of a request, the function on the far side that answers it, and the answer's
limits.

A function takes the request's arguments by keyword, and `data` where bytes came along. It returns what JSON can carry,
or is a generator that yields objects and bytes to be sent as they come. What it prints to stderr is printed here, and a
`LauncherError` that it raises is raised here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.runs.store import ARMS, FAILED


class Request(NamedTuple):
    """One question."""

    function: str
    """`module:name` of what answers it over there."""
    seconds: float = 60.0
    """In which the answer, or each part of one that comes in parts, has to be here."""
    size: int = 2**20
    """Bytes of the answer, or of each object of one that comes in parts."""


REQUESTS = {
    "hello": Request("launcher.executors.ssh.handlers:hello", seconds=30.0),
    "probe": Request("launcher.executors.ssh.handlers:probe", seconds=180.0, size=2**23),
    "examine": Request("launcher.executors.ssh.handlers:examine", seconds=180.0),
    "lacking": Request("launcher.executors.ssh.submit_server:lacking", seconds=180.0, size=2**23),
    "lay_code": Request("launcher.executors.ssh.submit_server:lay_code", seconds=600.0),
    "submit": Request("launcher.executors.ssh.submit_server:submit", seconds=600.0),
    "look": Request("launcher.executors.ssh.handlers:look", seconds=90.0, size=2**25),
    "log": Request("launcher.executors.ssh.handlers:log"),
    "request_stop": Request("launcher.executors.ssh.handlers:request_stop"),
    "cancel": Request("launcher.executors.ssh.handlers:cancel", seconds=180.0),
    "unended": Request("launcher.executors.ssh.handlers:unended", seconds=90.0),
    "resume": Request("launcher.executors.ssh.handlers:resume", seconds=600.0),
    "remove": Request("launcher.executors.ssh.handlers:remove", seconds=600.0),
    "contents": Request("launcher.executors.ssh.handlers:contents", seconds=180.0, size=2**25),
    "files": Request("launcher.executors.ssh.handlers:files", seconds=600.0),  # it may hash what is here already, first
}
WITHOUT_PYTHON = "launcher.executors.ssh.bash_host:answer"
"""`module:name` of what answers the same through bash, for a host without a Python of ours."""

MOST_FILES = 200_000
"""Files of one run that are brought."""
SMALL = ("plan.json", "submission.json", "status.json", "result.json", "provenance.json")
"""Files of a run that are copied wherever it is looked at from."""
METRICS = "metrics.jsonl"
LONGEST_SMALL = 2**21
"""Bytes of a file that is copied in an answer to `look`; a longer one is brought by `fetch`."""
MOST_ATTEMPTS = 1000
"""Attempts of a run that are told of, the newest of them; their numbers may be larger."""


def of_run(numbers: Iterable[int], arms: Iterable[str], *, ended: bool) -> list[str]:
    """Files that tell how a run stands, and of a comparison how its arms do; what those measured only at the end."""
    of_arm = (*SMALL, FAILED, *((METRICS,) if ended else ()))
    own = [*SMALL, *(f"attempts/{number}/stopped.json" for number in numbers)]
    return [*own, *(f"{ARMS}/{arm}/{name}" for arm in arms for name in of_arm)]
