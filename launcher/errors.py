"""The launcher's errors: one message, one exit code, no traceback."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from amp_launcher.shown import some

T = TypeVar("T")
U = TypeVar("U")


class LauncherError(Exception):
    """A message for people and the exit code of the process.

    The message may quote a host, a registry or a file, so it is cleaned for a terminal here.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        from launcher.admit import clean_lines  # not needed by a command that succeeds

        super().__init__(clean_lines(message))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it in a notebook."""
        return [f"error: {self}"]


class UsageError(LauncherError):
    """The request is wrong and nothing was submitted."""

    exit_code = 2


class Unavailable(LauncherError):
    """The cluster, host or runtime could not be used."""

    exit_code = 3


def of_system(error: OSError, place: object = "") -> str:
    """The system's message and the file; `place` is used where the error names none.

    For a full disk the file is the target of a copy, which the error names second.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    where = (error.filename2 if full else None) or error.filename or place
    return f"{error.strerror or error}{f': {where}' if where else ''}"


TYPED = " (command line)"
"""Where a word was set that is wrong: what a program asks for has no such place."""


@contextlib.contextmanager
def of_program() -> Iterator[None]:
    """Errors as a program gets them, which has no command line: what the system refuses is a `LauncherError` too."""
    try:
        yield
    except LauncherError as error:
        raise type(error)(str(error).replace(TYPED, "")) from None
    except OSError as error:
        raise Unavailable(of_system(error)) from None


@contextlib.contextmanager
def of_settings(before: str = "", after: str = "") -> Iterator[None]:
    """A `SettingsError` as a `UsageError`, with text around its own."""
    from amp_launcher.typed import SettingsError  # and dataclasses, which a listing does without

    try:
        yield
    except SettingsError as error:
        raise UsageError(f"{before}{error}{after}") from None


def placed(message: str, where: str) -> str:
    """The message with its place after the first line: further lines may be commands to copy."""
    first, newline, rest = message.partition("\n")
    return f"{first.removesuffix(':')}{where}{':' if first.endswith(':') else ''}{newline}{rest}"


def of_each(items: Iterable[tuple[str, T]], make: Callable[[T], U], kind: str) -> list[U]:
    """Apply `make` to each labelled item; `kind` is what the items are called.

    Raises the first `LauncherError`, with the labels that failed with the same message unless all did.
    """
    made, failed = attempts(items, make)
    if failed:
        raise first_of(failed, len(made) + len(failed), kind)
    return list(made.values())


def attempts(
    items: Iterable[tuple[str, T]], make: Callable[[T], U]
) -> tuple[dict[int, U], list[tuple[str, LauncherError]]]:
    """Apply `make` to each labelled item: the results by index, and the labels that failed with their errors."""
    made: dict[int, U] = {}
    failed: list[tuple[str, LauncherError]] = []
    for index, (label, item) in enumerate(items):
        try:
            made[index] = make(item)
        except LauncherError as error:
            failed.append((label, error))
    return made, failed


def first_of(failed: Sequence[tuple[str, LauncherError]], count: int, kind: str) -> LauncherError:
    """The first error, with the labels that failed with the same message unless all `count` did."""
    first = failed[0][1]
    labels = [label for label, error in failed if str(error) == str(first)]
    if len(labels) == count:
        return first
    where = f" (in the {kind}{'s' * (len(labels) > 1)} {some(labels)}; nothing was started)"
    return type(first)(placed(str(first), where))
