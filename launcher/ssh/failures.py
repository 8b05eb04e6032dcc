"""The ways in which asking a host fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from launcher.admit import Refused
from launcher.errors import Unavailable


class Unreachable(Unavailable):
    """The host could not be asked."""


class Lost(Unreachable):
    """The connection ended during a request, which may have been carried out or not."""


class BadAnswer(Unreachable):
    """The host's answer breaks the protocol or is too late. Asking again is useless."""


class NoPython(Unavailable):
    """The host accepts the login, but has no Python, or one that is too old."""


@contextlib.contextmanager
def admitting(host: str) -> Iterator[None]:
    """For code that reads a host's answer: a value that is refused raises `BadAnswer`."""
    try:
        yield
    except Refused as error:
        raise BadAnswer(f"{host} sent data that the protocol does not allow: {error}") from None
