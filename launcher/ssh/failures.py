"""The ways in which asking a host fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from launcher.admit import Refused
from launcher.errors import Unavailable


class Unreachable(Unavailable):
    """The host could not be asked."""


class Lost(Unreachable):
    """The connection ended during a request, which may have been carried out or not."""


class BadAnswer(Unreachable):
    """The host's answer breaks the protocol or is too late. Asking again is useless."""


@contextlib.contextmanager
def admitting(host: str) -> Iterator[None]:
    """For code that reads a host's answer: a value that is refused raises `BadAnswer`."""
    try:
        yield
    except Refused as error:
        raise BadAnswer(f"{host} sent data that the protocol does not allow: {error}") from None


class Retries:
    """Waits between tries after a connection was lost, for `PATIENCE` seconds from the first loss on."""

    PATIENCE = 300.0
    PAUSES = (1.0, 2.0, 5.0, 10.0)

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Something arrived: the next loss is the first one again."""
        self._tried, self._until = 0, 0.0

    def wait(self, error: Unreachable, say: Callable[[str], None]) -> None:
        """Return when it is time to try again; `say` is called with the first loss. Raises the error where no try would
        help."""
        now = time.monotonic()
        if self._tried == 0:
            self._until = now + self.PATIENCE
        if isinstance(error, BadAnswer) or now > self._until:
            raise error
        if self._tried == 0:
            say(f"{error}; retrying for {self.PATIENCE:.0f} s, to continue where it was (Ctrl-C gives up)")
        time.sleep(self.PAUSES[min(self._tried, len(self.PAUSES) - 1)])
        self._tried += 1
