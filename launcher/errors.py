"""What the launcher says when it can't do what was asked: one message, one exit code, no traceback."""

from __future__ import annotations


class LauncherError(Exception):
    """A message for people; `exit_code` is what the process ends with."""

    exit_code = 1


class UsageError(LauncherError):
    """The request is wrong and nothing was submitted."""

    exit_code = 2


class Unavailable(LauncherError):
    """The cluster, host or runtime could not be used."""

    exit_code = 3


def placed(message: str, where: str) -> str:
    """The message with the place that it is about behind its first line: what follows may be code to copy."""
    first, newline, rest = message.partition("\n")
    return f"{first.removesuffix(':')}{where}{':' if first.endswith(':') else ''}{newline}{rest}"
