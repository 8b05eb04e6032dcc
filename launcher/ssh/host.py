"""The client of a host: one session, opened at the first request, and again after it was lost.

Nothing that a host sends is trusted: every answer has a deadline and a size (`methods`), and the caller passes the
function that checks it (`launcher.admit`). After an answer that breaks the protocol the session is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from launcher import admit
from launcher.admit import Refused
from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.runs.address import Address
from launcher.ssh import failures, protocol
from launcher.ssh.failures import BadAnswer, Lost, Unreachable
from launcher.ssh.methods import LONGEST_ERROR, REQUESTS
from launcher.ssh.session import NOISE, Overdue, Session

SILENCE = 30.0
"""Seconds without a byte, heartbeats included, after which a connection is treated as dead."""
STEADY = 2**16
"""Bytes of a part sent in pieces that renew its deadline: the slowest transfer that is accepted is 1 kB/s."""
LONGEST_NOTE = 2000
"""Characters of a note that are shown."""

T = TypeVar("T")


class Host:
    """A machine that answers requests. Not thread-safe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.silence = SILENCE
        self._session: Session | None = None

    def ask(
        self,
        request: str,
        admitted: Callable[[Any], T],
        /,
        data: bytes | None = None,
        *,
        more_seconds: float = 0.0,
        **arguments: Any,
    ) -> T:
        """Send one of `methods.REQUESTS`, with `data` as bytes, and return its answer as `admitted` makes it, which
        raises `Refused` for a wrong one. `more_seconds` extends the deadline by what the host is told to wait.

        Raises the `LauncherError` that was raised there, with its exit code, and `Unreachable`: `Lost` if the
        connection broke after sending began, `BadAnswer` if the answer broke the protocol.
        """
        answers = self.stream(request, data, more_seconds=more_seconds, **arguments)
        with self.admitting(), contextlib.closing(answers):
            try:
                next(answers)
            except StopIteration as end:
                return admitted(end.value)
            raise Refused(f"its answer to {request} comes in parts")

    @contextlib.contextmanager
    def admitting(self) -> Iterator[None]:
        """For code that reads an answer: a value that is refused raises `BadAnswer` and closes the session."""
        try:
            with failures.admitting(self.address.destination):
                yield
        except BadAnswer:
            self.close()
            raise

    def stream(
        self, request: str, /, data: bytes | None = None, *, more_seconds: float = 0.0, **arguments: Any
    ) -> Generator[Any, None, Any]:
        """`ask` for a request that yields: its objects and bytes as they arrive, to be read in `admitting`; the
        generator returns what the request returns. Leaving it before its end closes the session."""
        limits = REQUESTS[request]
        seconds = limits.seconds + more_seconds
        session = self._connected()
        message: dict[str, Any] = {"do": request, "with": arguments}
        if data is not None:
            message["bytes"] = len(data)
        ended = False
        session.silence = self.silence
        try:
            session.send(protocol.pack(message))
            for frame in protocol.packed_bytes(data or b""):
                session.send(frame)
            session.deadline = time.monotonic() + seconds
            noted = received = 0
            while True:
                answer = session.receive(limits.size)
                left = session.deadline - time.monotonic()
                if isinstance(answer, bytes):
                    yield answer
                    received += len(answer)
                    left, received = (seconds, 0) if received >= STEADY else (left, received)
                elif "item" in answer:
                    yield answer["item"]
                    left, received = seconds, 0
                elif "say" in answer:
                    noted += self._note(answer["say"], NOISE - noted)
                else:
                    ended = True
                    return self._result(answer)
                session.deadline = time.monotonic() + left  # the time that the caller spent on a part does not count
        except Overdue:
            raise BadAnswer(
                f"{self.address.destination} has not answered in {seconds:.0f} s, though its connection lives: the "
                "launcher's agent there hangs, or another program answers"
            ) from None
        finally:
            if not ended:
                self.close()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _connected(self) -> Session:
        """Raises `Unreachable`."""
        if self._session is None:
            try:
                self._session = Session(self.address, self.silence)
            except Lost:
                raise
            except Unavailable as error:
                raise Unreachable(str(error)) from None
        return self._session

    def _note(self, value: Any, room: int) -> int:
        """Show what the host printed during a request, at most `room` characters. Returns its size."""
        with self.admitting():
            note = admit.text(value, "a note", NOISE)
            if len(note) >= room:
                raise Refused("its notes have no end")
        shown = f"{note[:LONGEST_NOTE]}{'…' * (len(note) > LONGEST_NOTE)}"
        print(f"{self.address.destination}: {shown}", file=sys.stderr)
        return len(note) + 1

    def _result(self, answer: dict[str, Any]) -> Any:
        """The answer, or the `LauncherError` that was raised there."""
        if "answer" in answer:
            return answer["answer"]
        with self.admitting():
            text = admit.lines(admit.group(answer, "an answer", "error", "code")["error"], "its error", LONGEST_ERROR)
            code = admit.whole(answer["code"], "its exit code", 255)
        kind = {2: UsageError, 3: Unavailable}.get(code, LauncherError)
        raise kind(f"{self.address.destination}: {text}" if kind is Unavailable else text)


def nothing(answer: Any) -> None:
    """Admits the answer of a request that has none."""


def hello(answer: Any) -> dict[str, str]:
    """Admits the answer to `hello`. Raises `Refused`."""
    keys = ("host", "system", "python")
    texts = admit.group(answer, "its hello", *keys)
    return {key: admit.text(texts[key], key) for key in keys}


_hosts: dict[Address, Host] = {}


def connect(address: Address) -> Host:
    """The client of the host at this address, one for the process. It connects at the first request."""
    if address not in _hosts:
        if not _hosts:
            atexit.register(close_all)
        _hosts[address] = Host(address)
    return _hosts[address]


def close_all() -> None:
    for host in _hosts.values():
        with contextlib.suppress(OSError):
            host.close()
    _hosts.clear()
