"""A request of `bash_requests.sh`: sent to a bash on a host, the answer read as lines of words and base64."""

from __future__ import annotations

import base64
import binascii
import os
import re
import time
from collections.abc import Iterator, Sequence

from launcher import admit, bash_files
from launcher.admit import Refused
from launcher.containers.words import to_bash
from launcher.errors import UsageError
from launcher.runs.address import Address
from launcher.ssh import transport
from launcher.ssh.failures import BadAnswer, Lost, Unreachable
from launcher.ssh.stream import Stalled, write_all

LONGEST_ANSWER = 2**26
"""Bytes of an answer, or of one line of a streamed answer."""
WRITING = 30.0
"""Seconds for each block that is sent."""

Line = tuple[str, list[str]]
"""A word, and what follows it."""


class BashSession:
    """Requests to one host, each over a connection of its own. `no_python` says why bash is used; `seconds` is the
    deadline of an answer, or of each line of a streamed one."""

    def __init__(self, address: Address, no_python: str, seconds: float) -> None:
        self.address, self.no_python, self._seconds = address, no_python, seconds

    def lines(self, request: str, *arguments: str, data: bytes = b"", streamed: bool = False) -> Iterator[Line]:
        """The lines of the answer. Raises `Refused`, `Unreachable` and the request's own `UsageError`."""
        mark, name, seconds = os.urandom(8).hex(), self.address.destination, self._seconds
        text = program(request, arguments, mark)
        stream = transport.open_stream(self.address, "bash --norc -s")
        until, rest, size, begun = time.monotonic() + seconds, bytearray(), 0, False
        try:
            write_all(stream, text.encode("utf-8", "surrogateescape") + data, WRITING)
            while True:
                part = stream.read(max(0.01, until - time.monotonic()))
                if not part:
                    complaint = admit.clean_lines(stream.complaint())
                    if not begun and stream.exit_code() in (126, 127):
                        raise Unreachable(f"{self.no_python}; nor does it have a bash: {complaint}")
                    raise Lost(f"the connection to {name} was lost: {complaint}".rstrip(": "))
                rest += part
                *lines, rest = rest.split(b"\n") if b"\n" in part else [rest]
                size += len(part)
                if (len(rest) if streamed else size) > LONGEST_ANSWER:
                    raise Refused("its answer has no end")
                for line in lines:
                    first, *fields = line.decode("ascii", "replace").split(" ")
                    if first != mark or not fields:
                        continue  # printed by a login script
                    begun, until = True, time.monotonic() + seconds if streamed else until
                    if fields[0] == "end":
                        return
                    if fields[0] == "fail":
                        raise UsageError(admit.lines(text_of(fields[1:]), "its error"))
                    yield fields[0], fields[1:]
        except Stalled:
            raise BadAnswer(f"{name} has not answered in {seconds:.0f} s") from None
        finally:
            stream.close()


def program(request: str, arguments: Sequence[str], mark: str) -> str:
    """The text for bash; data of the request may follow. The braces keep bash from running a part of the last line, if
    the connection is cut within it: `remove` with a root and no run would delete the root."""
    functions = bash_files.text("launcher.ssh", "bash_requests.sh")
    return f"{functions}mark={mark}\n{{ on_{request} {' '.join(map(to_bash, arguments))}; say end; exit; }}\n"


def bytes_of(words: Sequence[str]) -> bytes:
    """The content of a field in base64. Raises `Refused`."""
    try:
        return base64.b64decode("".join(words), validate=True)
    except binascii.Error:
        raise Refused("a field is not base64") from None


def text_of(words: Sequence[str]) -> str:
    """Raises `Refused`."""
    return bytes_of(words).decode("utf-8", "replace")


def number(text: str, most: int = admit.LARGEST) -> int:
    """A whole number in decimal digits. Raises `Refused`."""
    return admit.whole(int(text) if re.fullmatch(r"[0-9]{1,19}", text) else text, "a number", most)


def nanoseconds(text: str) -> int:
    """A time in seconds with a fraction, as GNU prints it. Raises `Refused`."""
    match = re.fullmatch(r"(\d{1,10})\.(\d{9})\d?", text)
    if match is None:
        raise Refused(f"{text[:40]!a} is not a time of change")
    return int(match[1]) * 10**9 + int(match[2])
