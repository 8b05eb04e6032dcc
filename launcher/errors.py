"""What the launcher says when it can't do what was asked: one message, one exit code, no traceback."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

MOST_NAMED = 4
"""Of many that are refused alike, those that are named."""


class LauncherError(Exception):
    """A message for people; `exit_code` is what the process ends with.

    It may quote what a host, a registry or a file says, so it is cleaned for a terminal here, wherever it is shown.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        from launcher.admit import clean_lines  # which a command that goes well does without

        super().__init__(clean_lines(message))


class UsageError(LauncherError):
    """The request is wrong and nothing was submitted."""

    exit_code = 2


class Unavailable(LauncherError):
    """The cluster, host or runtime could not be used."""

    exit_code = 3


def of_system(error: OSError, place: object = "") -> str:
    """What the system refused, and for which file; `place` stands in where the error names none.

    Where a copy found no room its target is named, which is on the full disk; the source comes first in the error.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    where = (error.filename2 if full else None) or error.filename or place
    return f"{error.strerror or error}{f': {where}' if where else ''}"


def placed(message: str, where: str) -> str:
    """The message with the place that it is about behind its first line: what follows may be code to copy."""
    first, newline, rest = message.partition("\n")
    return f"{first.removesuffix(':')}{where}{':' if first.endswith(':') else ''}{newline}{rest}"


def of_each(asked: Iterable[tuple[str, T]], make: Callable[[T], U], what: str) -> list[U]:
    """What is made of each, which go by their labels and are called `what`.

    Raises the first `LauncherError`, which names those that it is about, unless they all are.
    """
    made: list[U] = []
    refused: list[tuple[str, LauncherError]] = []
    count = 0
    for label, each in asked:
        count += 1
        try:
            made.append(make(each))
        except LauncherError as error:
            refused.append((label, error))
    if not refused:
        return made
    raise first_of(refused, count, what)


def first_of(refused: Sequence[tuple[str, LauncherError]], count: int, what: str) -> LauncherError:
    """The first of the refusals, which names those that it is about, unless they are all of the `count`."""
    first = refused[0][1]
    alike = [label for label, error in refused if str(error) == str(first)]
    if len(alike) == count:
        return first
    named = ", ".join(alike[:MOST_NAMED]) + (f" and {len(alike) - MOST_NAMED} more" if alike[MOST_NAMED:] else "")
    return type(first)(placed(str(first), f" (in the {what}{'s' * (len(alike) > 1)} {named}; nothing was started)"))
