"""The requests that a host answers, with the limits of each answer. The agent has the function for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.runs.store import ARMS, BLOCK, ENDED, FAILED


class Request(NamedTuple):
    seconds: float = 60.0
    """Deadline of the answer, or of each of its parts."""
    size: int = 2**20
    """Bytes of the answer, or of each of its objects."""


REQUESTS = {
    "hello": Request(seconds=30.0),
    "probe": Request(seconds=180.0, size=2**23),
    "examine": Request(seconds=180.0),
    "has_code": Request(seconds=180.0),
    "write_code": Request(seconds=600.0),
    "make_environment": Request(seconds=120.0),
    "submit": Request(seconds=600.0),
    "look": Request(seconds=90.0, size=2**25),
    "log": Request(),
    "request_stop": Request(),
    "cancel": Request(seconds=180.0),
    "resume": Request(seconds=600.0),
    "verify": Request(seconds=600.0),
    "remove": Request(seconds=600.0),
    "sizes": Request(seconds=180.0),
    "contents": Request(seconds=180.0, size=2**25),
    "files": Request(seconds=600.0),  # it may hash what is here already, first
}

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
