"""The agent: the launcher on a remote host. It answers requests from standard input, one at a time, until that ends.

Standard output carries frames only; what a request prints to stderr is sent as notes. Heartbeats are sent all the time,
so that the client can tell a slow answer from a dead network. A request that has arrived is carried out even if the
connection is lost meanwhile.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError, of_system
from launcher.executors.ssh import handlers, submit_server
from launcher.ssh import protocol
from launcher.ssh.methods import LONGEST_ERROR, REQUESTS

HEARTBEAT = 5.0
"""Seconds between heartbeats."""
KEPT = 30 * 86400.0
"""Seconds for which zips of other versions of the launcher are kept on the host."""
_OF_SUBMISSIONS = (submit_server.has_code, submit_server.write_code, submit_server.submit)
ANSWERS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _OF_SUBMISSIONS}
"""What answers each request. A function takes the request's arguments by keyword, and `data` for bytes. It returns a
JSON value, or is a generator of objects and bytes, sent as they come. What it prints to stderr is printed at the
client, and a `LauncherError` that it raises is raised there."""
ANSWERS |= {name: getattr(handlers, name) for name in REQUESTS if name not in ANSWERS}


def serve() -> None:
    """Answer requests until the client closes or is gone."""
    channel = _Channel()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the end)
    sys.stderr = _Notes(channel)
    # A handler, since an ignored signal stays ignored in the runs that are started from here.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    threading.Thread(target=channel.beat, daemon=True).start()
    _tidy(Path(__file__).parents[3], time.time() - KEPT)
    while True:
        try:
            request = protocol.receive(channel.read)
            assert isinstance(request, dict)
            parts, missing = [], request.get("bytes", 0)
            while missing > 0:
                parts.append(protocol.receive(channel.read))
                missing -= len(parts[-1])
        except protocol.Ended:
            return
        channel.send(protocol.pack(_answer(channel, request, b"".join(parts))))


def _tidy(mine: Path, before: float) -> None:
    """Delete zips of other versions from before that time, in seconds since 1970."""
    for other in mine.parent.glob("agent-*.zip*"):
        with contextlib.suppress(OSError):
            if other != mine and other.stat().st_mtime < before:
                other.unlink()


def _answer(channel: _Channel, request: dict[str, Any], data: bytes) -> dict[str, Any]:
    arguments = dict(request["with"])
    if "bytes" in request:
        arguments["data"] = data
    try:
        answer = ANSWERS[request["do"]](**arguments)
        if isinstance(answer, Generator):
            answer = _streamed(channel, answer)
        return {"answer": answer}
    except LauncherError as error:
        return {"error": str(error)[:LONGEST_ERROR], "code": error.exit_code}
    except OSError as error:
        return {"error": of_system(error)[:LONGEST_ERROR], "code": 3}
    except Exception as error:
        # Uncaught, it would end this process, and the client would see a lost connection only.
        return {"error": _defect(error)[:LONGEST_ERROR], "code": 3}


def _defect(error: Exception) -> str:
    """A defect of the launcher on one line: the client sees no traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"the launcher's agent there failed: {type(error).__name__}: {error} ({place})"


def _streamed(channel: _Channel, items: Generator[Any, None, Any]) -> Any:
    """Send what a request yields, bytes and objects. Returns what the request returns."""
    while True:
        try:
            item = next(items)
        except StopIteration as end:
            return end.value
        if isinstance(item, bytes):
            for frame in protocol.packed_bytes(item):
                channel.send(frame)
        else:
            channel.send(protocol.pack({"item": item}))
        if channel.lost:  # nobody reads the rest
            return None


class _Channel:
    """Standard input and output, out of reach of children and stray prints."""

    def __init__(self) -> None:
        self.lost = False
        self._lock = threading.Lock()
        self._inward, self._outward = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes. Raises `protocol.Ended`."""
        parts = []
        while count:
            part = os.read(self._inward, min(count, protocol.CHUNK))
            if not part:
                raise protocol.Ended
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(self, frame: bytes) -> None:
        """Does nothing once the client is gone: the request is carried out all the same."""
        with self._lock:
            rest = memoryview(frame)
            while rest and not self.lost:
                try:
                    rest = rest[os.write(self._outward, rest) :]
                except OSError:
                    self.lost = True

    def beat(self) -> None:
        while not self.lost:
            threading.Event().wait(HEARTBEAT)
            self.send(protocol.ALIVE)


class _Notes(io.TextIOBase):
    """Replaces stderr: each printed line is sent as a note."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._channel.send(protocol.pack({"say": line}))
        return len(text)
