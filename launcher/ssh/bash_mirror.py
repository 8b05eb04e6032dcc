"""The small files of a run that a bash sent, in a temporary folder, where the launcher's functions read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launcher import safe_files
from launcher.admit import Refused
from launcher.runs import run_files
from launcher.runs.states import LARGEST_ATTEMPT, Seen, answering, judge, liveness_of
from launcher.runs.store import Run
from launcher.ssh.bash_session import Line, bytes_of, nanoseconds, number, text_of
from launcher.ssh.methods import LONGEST_SMALL, MOST_ATTEMPTS, SMALL

_OF_ATTEMPT = re.compile(r"attempts/(\d{1,6})/(stopped\.json|failed\.json|stdout\.log|stderr\.log)")


class Boot(NamedTuple):
    """A host since its last start."""

    id: str
    time: int
    """Seconds since 1970, by its clock."""
    host: str


def boot(lines: Iterator[Line]) -> Boot:
    """From the first line of an answer. Raises `Refused`."""
    word, fields = next(lines, ("", []))
    if word != "here" or len(fields) != 3:
        raise Refused("it does not name itself")
    return Boot(fields[0], number(fields[1]), text_of(fields[2:]))


def mirrored(top: Path, id: str, there: Boot, lines: Iterator[Line]) -> Seen:
    """The next run of an answer, its files written below `top`. Raises `Refused`."""
    folder, alive, attempts = top / id, set[tuple[int, int]](), 0
    for word, fields in lines:
        if word == "next":
            break
        if word == "exists" and not folder.exists():
            folder.mkdir()
        elif word == "alive" and len(fields) == 2:
            alive.add((number(fields[0]), number(fields[1])))
        elif word == "attempt" and len(fields) == 1 and attempts < MOST_ATTEMPTS:
            safe_files.make_in(folder, f"attempts/{number(fields[0], LARGEST_ATTEMPT - 1)}")
            attempts += 1
        elif word == "file" and len(fields) == 4:
            name, content = fields[0], bytes_of(fields[3:])
            if name not in (*SMALL, "STOP", "cancelled", "launch.log") and not _OF_ATTEMPT.fullmatch(name):
                raise Refused("it sends a file that was not requested")
            if len(content) > LONGEST_SMALL:
                raise Refused(f"{name} is longer than was requested")
            safe_files.write_in(folder, name, content, modified=nanoseconds(fields[2]))
        else:
            raise Refused("an answer about a run has a wrong line")
    else:
        raise Refused("it answers about fewer runs than it was asked about")
    files = run_files.load(str(folder))
    liveness = liveness_of(
        answering(files),
        there.host,
        there.id,
        lambda process: (process.pid, process.start) in alive,
        there.host,
    )
    return Seen(Run(str(top), id), files, judge(files, liveness))
