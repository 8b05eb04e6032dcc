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
