"""This side of a host: one connection, opened when the first thing is asked, and again where it was lost.

Nothing that a host says is believed: an answer has a deadline and a size (`requests`), and whoever asks says how it is
admitted (`launcher.runs.admit`). A host that answers otherwise raises `BadAnswer`, and its connection is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from launcher import admit
from launcher.admit import Refused
from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.runs.address import Address
from launcher.ssh import bootstrap, openssh_transport, protocol
from launcher.ssh.archive import archive
from launcher.ssh.methods import REQUESTS, WITHOUT_PYTHON
from launcher.ssh.stream import Stalled, Stream

SILENCE = 30.0
"""Seconds without a sign of life after which a connection is taken for dead."""
NOISE = 2**17
"""Bytes that login scripts may print before the agent's first word, and those of all notes beside one answer."""
OPENING = 120.0
"""Seconds in which a host that let us in has to have its far side running."""
STEADY = 2**16
"""Bytes of a part that comes in pieces which buy it another deadline: a kilobyte a second is the slowest that is
borne."""
LONGEST_NOTE = 2000
"""Characters of a note that are shown."""
LONGEST_ERROR = 2**14

T = TypeVar("T")


class Unreachable(Unavailable):
    """The host could not be asked."""


class Lost(Unreachable):
    """The connection ended in the middle: what was asked may have been done or not."""


class Stuck(Lost):
    """Nothing comes any more."""


class NoPython(Unavailable):
    """The host lets us in, and its Python is too old, or there is none."""


class BadAnswer(Unreachable):
    """The host was asked and did not answer as a launcher does, or not in time. Asking again is of no use."""


class _Overdue(Exception):
    """The deadline of an answer has passed."""


_LOGIN_SCRIPTS = (
    "a login script there (.bashrc, .zshenv, .tcshrc, config.fish) may end the shell, start another one or wait for "
    "input, also where no person sits: `ssh` to it with the command `true` has to end by itself"
)


class Host:
    """A machine that answers requests. Not for two threads at once."""

    def __init__(self, address: Address, say: Callable[[str], None] | None = None) -> None:
        self.address = address
        self.greeting: dict[str, Any] = {}
        """What the far side said of itself: host, home, python, version, pid."""
        self.silence = SILENCE
        self._stream: Stream | None = None
        self._without_python = ""
        """Why the host is asked through bash, where it is."""
        self._held = b""
        self._deadline = 0.0
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))

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
        """Ask one of `requests.REQUESTS` and give its answer, as `admitted` makes it of what came, or raises `Refused`.

        `data` is bytes that go along; `more_seconds` are those that the host was asked to wait itself. Raises the
        `LauncherError` that it raised there, with its exit code; `Unreachable` where the host could not be asked: of
        these `Lost` where the connection broke after the request had begun to be sent, and `BadAnswer`.
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
        """For what takes an answer apart: a value that is refused makes it a `BadAnswer`, and ends the connection."""
        try:
            yield
        except Refused as error:
            self.close()
            raise BadAnswer(f"{self._name} does not speak as a launcher should: {error}") from None

    def stream(
        self, request: str, /, data: bytes | None = None, *, more_seconds: float = 0.0, **arguments: Any
    ) -> Generator[Any, None, Any]:
        """The same of a request that yields: its objects and bytes as they come, to be taken apart in `admitting`; what
        it returns is the generator's own value. An answer that is left before its end ends the connection."""
        limits = REQUESTS[request]
        seconds = limits.seconds + more_seconds
        if self._stream is None and not self._without_python:
            try:
                self._open()
            except NoPython as error:
                if self.address.python is not None:
                    raise Unreachable(str(error)) from None
                self._without_python = str(error)
            except Lost:
                raise
            except Unavailable as error:
                raise Unreachable(str(error)) from None
        if self._without_python:
            module, _, function = WITHOUT_PYTHON.partition(":")
            answer = getattr(importlib.import_module(module), function)
            return (yield from answer(self, self._without_python, request, data, seconds, arguments))
        message: dict[str, Any] = {"do": request, "with": arguments}
        if data is not None:
            message["bytes"] = len(data)
        ended = False
        try:
            self._send(protocol.pack(message))
            for frame in protocol.packed_bytes(data or b""):
                self._send(frame)
            self._deadline = time.monotonic() + seconds
            noted = steady = 0
            while True:
                answer = self._receive(limits.size)
                left = self._deadline - time.monotonic()
                if isinstance(answer, bytes):
                    yield answer
                    steady += len(answer)
                    left, steady = (seconds, 0) if steady >= STEADY else (left, steady)
                elif "item" in answer:
                    yield answer["item"]
                    left, steady = seconds, 0
                elif "say" in answer:
                    noted += self._note(answer["say"], NOISE - noted)
                else:
                    ended = True
                    return self._taken(answer)
                self._deadline = time.monotonic() + left  # what is done with a part takes none of its time
        except _Overdue:
            raise BadAnswer(
                f"{self._name} has not answered in {seconds:.0f} s, though its connection lives: the launcher there "
                "hangs, or is none"
            ) from None
        finally:
            if not ended:
                self.close()

    def close(self) -> None:
        stream, self._stream, self._held = self._stream, None, b""
        if stream is not None:
            stream.close()

    def _note(self, text: Any, room: int) -> int:
        """Show what the far side printed beside its answer. Gives its size."""
        with self.admitting():
            note = admit.text(text, "a note", NOISE)
            if len(note) >= room:
                raise Refused("its notes have no end")
        self._say(f"{self._name}: {note[:LONGEST_NOTE]}{'…' * (len(note) > LONGEST_NOTE)}")
        return len(note) + 1

    def _taken(self, answer: dict[str, Any]) -> Any:
        if "answer" in answer:
            return answer["answer"]
        with self.admitting():
            text = admit.lines(admit.group(answer, "what came", "error", "code")["error"], "its error", LONGEST_ERROR)
            code = admit.whole(answer["code"], "its exit code", 255)
        kind = {2: UsageError, 3: Unavailable}.get(code, LauncherError)
        raise kind(f"{self._name}: {text}" if kind is Unavailable else text)

    # The connection

    def _open(self) -> None:
        """Connect, and have the far side running. Raises `Unavailable`."""
        digest, zipped = archive()
        command = bootstrap.command(digest, len(zipped), self.address.python)
        self._stream = self.transport(command)
        self._deadline = time.monotonic() + OPENING
        try:
            word = self._word()
            if word == "need":
                self._send(zipped)
                word = self._word()
            if word != "ready":
                raise self._refusal(word)
            with self.admitting():
                self.greeting = _greeting(self._receive(NOISE))
        except _Overdue:
            self.close()
            raise Unavailable(self._unbegun(OPENING)) from None
        except BaseException:
            self.close()
            raise

    def transport(self, command: str) -> Stream:
        """A command over there, started. Raises `Unavailable`."""
        if self.address.transport == "openssh":
            return openssh_transport.opened(self.address, command)
        try:
            from launcher.ssh import fabric_transport
        except ModuleNotFoundError as error:
            if error.name not in ("fabric", "paramiko"):
                raise
            raise UsageError(
                "SSH needs fabric: pip install 'amp-launcher[ssh]'; or say cluster.transport=openssh, which takes the "
                "system's ssh"
            ) from None
        return fabric_transport.opened(self.address, command)

    def _word(self) -> str:
        """The next line that the bootstrap wrote, past whatever login scripts printed."""
        seen = 0
        while True:
            line = b""
            while not line.endswith(b"\n"):
                try:
                    line += self._read(1)
                except Stuck:
                    raise Lost(self._unbegun(self.silence)) from None
                except protocol.Ended:
                    raise self._silent(line.decode(errors="replace")) from None
                seen += 1
                if seen > NOISE:
                    raise Unavailable(f"{self._name} prints without end when logged in to, and starts no command")
            mark, _, word = admit.clean(line.decode(errors="replace").strip()).partition(" ")
            if mark == bootstrap.MARK:
                return word

    def _refusal(self, word: str) -> Unavailable:
        kind, _, text = word.partition(" ")
        floor = ".".join(map(str, bootstrap.FLOOR))
        if kind == "old":
            version, _, program = text.partition(" ")
            return NoPython(
                f"{self._name} answers with Python {version} ({program}), and {floor} or newer is needed there; name "
                "one with cluster.python=/path/to/python3"
            )
        return Unavailable(f"{self._name} can't keep the launcher's far side in ~/.cache/launcher: {text}")

    def _silent(self, line: str) -> Unavailable:
        """Why the far side ended without a word."""
        assert self._stream is not None
        code, complaint = self._stream.exit_code(), admit.clean_lines(self._stream.complaint())
        said = complaint.splitlines()[-1] if complaint else line.strip()
        if self.address.transport == "openssh" and code == 255:
            return Unavailable(self._openssh_failed(complaint))
        if code in (126, 127):
            return NoPython(
                f"{self._name} has no {self.address.python or 'python3'} that could be run ({said}); Python 3.10 or "
                "newer is needed there, outside any container: name it with cluster.python=/path/to/python3"
            )
        ended = f" (exit code {code})" if code else ""
        return Unavailable(f"{self._name} lets you in but runs no command{ended}: {said or _LOGIN_SCRIPTS}")

    def _unbegun(self, seconds: float) -> str:
        return (
            f"{self._name} has not started a command in {seconds:.0f} s: the network or the host is stuck; or "
            f"{_LOGIN_SCRIPTS}"
        )

    def _openssh_failed(self, complaint: str) -> str:
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in complaint:
            return self._changed_key(complaint)
        said = [line.strip() for line in complaint.splitlines() if line.strip()]
        told = said[-1:] or ["it says nothing"]
        advice = "`ssh` with the same words shows more"
        if "Host key verification failed" in complaint:
            told[-1] = "host key verification failed"
            advice = "connect once with `ssh` itself to see the key and accept it"
        elif "terminating, " in told[-1] or "UNKNOWN port" in told[-1]:
            told = said[:1]  # the configuration, or what stands before the host: the reason comes first
        elif "Permission denied" in complaint:
            advice = "open a master connection first (ssh -fNM, with a ControlPath in ~/.ssh/config), or `ssh-add`"
        return f"ssh can't connect to {self._name}: {'; '.join(told)}; {advice}"

    def _changed_key(self, complaint: str) -> str:
        """As the other transport has it. Of what ssh says only a fingerprint and a command of one form are taken: the
        command is for people to copy, and whoever answers there may have written lines of their own."""
        shown = re.search(r"SHA256:[A-Za-z0-9+/]{43}", complaint)
        shows = f"it shows {shown[0]}, and another one is known" if shown else "it shows another one"
        said = f"the host key of {self._name}, or of a hop before it, is not the one that is known: {shows}. "
        said += "Somebody may be listening in. If the host was really set up anew, forget the old key with\n"
        for line in complaint.splitlines():
            with contextlib.suppress(ValueError):
                words = shlex.split(line)
                if len(words) == 5 and words[:2] == ["ssh-keygen", "-f"] and words[3] == "-R":
                    return (
                        f"{said}  {shlex.join(words)}\nand connect with `ssh` itself to compare and accept the new one"
                    )
        return f"{said}  ssh-keygen -R HOST\nand connect with `ssh` itself to compare and accept the new one"

    @property
    def _name(self) -> str:
        return self.address.destination

    def _send(self, data: bytes) -> None:
        assert self._stream is not None
        try:
            for start in range(0, len(data), STEADY):
                self._stream.write(data[start : start + STEADY], self.silence)
        except Stalled:
            raise Lost(self._stalled()) from None
        except OSError as error:
            raise Lost(f"the connection to {self._name} was lost: {error or type(error).__name__}") from None

    def _receive(self, longest: int) -> Any:
        """The next frame: bytes, or an object of at most so many bytes. Raises `_Overdue` at the deadline."""
        try:
            frame = protocol.receive(self._read, longest)
            with self.admitting():
                return frame if isinstance(frame, bytes) else admit.group(frame, "what came")
        except protocol.Ended:
            complaint = self._stream.complaint().splitlines() if self._stream else []
            said = f": {admit.clean(complaint[-1])}" if complaint else ""
            raise Lost(f"the connection to {self._name} was lost{said}") from None
        except protocol.Garbled as error:
            raise BadAnswer(f"{self._name} does not speak as a launcher should: {error}") from None

    def _read(self, count: int) -> bytes:
        """So many bytes. Raises `wire.Ended`, `Lost` after a silence, and `_Overdue` at the deadline."""
        assert self._stream is not None
        parts, missing = [], count
        while missing:
            if not self._held:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise _Overdue
                try:
                    self._held = self._stream.read(min(self.silence, left))
                except Stalled:
                    if left < self.silence:
                        raise _Overdue from None
                    raise Stuck(self._stalled()) from None
                except OSError as error:
                    raise Lost(f"the connection to {self._name} was lost: {error}") from None
                if not self._held:
                    raise protocol.Ended
            part, self._held = self._held[:missing], self._held[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _stalled(self) -> str:
        return (
            f"{self._name} has said nothing for {self.silence:.0f} s: the network or the host is stuck. What runs "
            "there goes on; try again"
        )


def nothing(answer: Any) -> None:
    """Admits the answer of a request that has none."""


def hello(answer: Any) -> dict[str, str]:
    """Admits that of `hello`: texts. Raises `Refused`."""
    keys = ("host", "system", "python")
    found = admit.group(answer, "its hello", *keys)
    return {key: admit.text(found[key], key) for key in keys}


def _greeting(value: Any) -> dict[str, Any]:
    texts = ("host", "home", "python", "version")
    found = admit.group(value, "its greeting", *texts, "pid")
    return {**{key: admit.text(found[key], key) for key in texts}, "pid": admit.whole(found["pid"], "pid")}


_hosts: dict[Address, Host] = {}


def connect(address: Address) -> Host:
    """The host at this address: one for the whole command. It is connected when something is asked of it."""
    if address not in _hosts:
        if not _hosts:
            atexit.register(close_all)
        _hosts[address] = Host(address)
    return _hosts[address]


def close_all() -> None:
    """Close every connection, in the process that made them."""
    for each in _hosts.values():
        with contextlib.suppress(OSError):
            each.close()
    _hosts.clear()
