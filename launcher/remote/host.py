"""This side of a host: one connection, opened when the first thing is asked, and again where it was lost."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.remote import bootstrap, openssh, wire
from launcher.remote.address import Address
from launcher.remote.archive import archive
from launcher.remote.stream import Stalled, Stream

SILENCE = 30.0
"""Seconds without a sign of life after which a connection is taken for dead."""
NOISE = 2**16
"""Bytes that login scripts may print before the agent's first word."""


class Unreachable(Unavailable):
    """The host could not be asked."""


class Lost(Unreachable):
    """The connection ended in the middle: what was asked may have been done or not."""


class Stuck(Lost):
    """Nothing comes any more."""


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
        self._held = b""
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))

    def ask(self, request: str, /, data: bytes | None = None, **arguments: Any) -> Any:
        """Ask one of `requests.REQUESTS` and give its answer. `data` is bytes that go along.

        Raises the `LauncherError` that it raised there, with its exit code; `Unreachable` where the host could not be
        asked, and of these `Lost` where the connection broke after the request had begun to be sent.
        """
        answers = self.stream(request, data, **arguments)
        while True:
            try:
                next(answers)
            except StopIteration as end:
                return end.value

    def stream(self, request: str, /, data: bytes | None = None, **arguments: Any) -> Generator[Any, None, Any]:
        """The same of a request that yields: its objects and bytes as they come; what it returns is the generator's own
        value. An answer that is left before its end ends the connection."""
        if self._stream is None:
            try:
                self._open()
            except Lost:
                raise
            except Unavailable as error:
                raise Unreachable(str(error)) from None
        message: dict[str, Any] = {"do": request, "with": arguments}
        if data is not None:
            message["bytes"] = len(data)
        ended = False
        try:
            self._send(wire.pack(message))
            for frame in wire.packed_bytes(data or b""):
                self._send(frame)
            while True:
                answer = self._receive()
                if isinstance(answer, bytes):
                    yield answer
                elif "item" in answer:
                    yield answer["item"]
                elif "say" in answer:
                    self._say(answer["say"])
                else:
                    ended = True
                    return self._taken(answer)
        finally:
            if not ended:
                self.close()

    def close(self) -> None:
        stream, self._stream, self._held = self._stream, None, b""
        if stream is not None:
            stream.close()

    def _taken(self, answer: dict[str, Any]) -> Any:
        if "answer" in answer:
            return answer["answer"]
        kind = {2: UsageError, 3: Unavailable}.get(answer["code"], LauncherError)
        text = answer["error"]
        raise kind(f"{self.address.destination}: {text}" if kind is Unavailable else text)

    # The connection

    def _open(self) -> None:
        """Connect, and have the far side running. Raises `Unavailable`."""
        digest, zipped = archive()
        command = bootstrap.command(digest, len(zipped), self.address.python)
        self._stream = self._transport(command)
        try:
            word = self._word()
            if word == "need":
                self._send(zipped)
                word = self._word()
            if word != "ready":
                raise Unavailable(self._refusal(word))
            self.greeting = self._receive()
        except BaseException:
            self.close()
            raise

    def _transport(self, command: str) -> Stream:
        if self.address.transport == "openssh":
            return openssh.opened(self.address, command)
        try:
            from launcher.remote import connection
        except ModuleNotFoundError as error:
            if error.name not in ("fabric", "paramiko"):
                raise
            raise UsageError(
                "SSH needs fabric: pip install 'amp-launcher[ssh]'; or say cluster.transport=openssh, which takes the "
                "system's ssh"
            ) from None
        return connection.opened(self.address, command)

    def _word(self) -> str:
        """The next line that the bootstrap wrote, past whatever login scripts printed."""
        seen = 0
        while True:
            line = b""
            while not line.endswith(b"\n"):
                try:
                    line += self._read(1)
                except Stuck:
                    raise Lost(self._unbegun()) from None
                except wire.Ended:
                    raise Unavailable(self._silent(line.decode(errors="replace"))) from None
                seen += 1
                if seen > NOISE:
                    raise Unavailable(f"{self._name} prints without end when logged in to, and starts no command")
            mark, _, word = line.decode(errors="replace").strip().partition(" ")
            if mark == bootstrap.MARK:
                return word

    def _refusal(self, word: str) -> str:
        kind, _, text = word.partition(" ")
        floor = ".".join(map(str, bootstrap.FLOOR))
        if kind == "old":
            version, _, program = text.partition(" ")
            return (
                f"{self._name} answers with Python {version} ({program}), and {floor} or newer is needed there; name "
                "one with cluster.python=/path/to/python3"
            )
        return f"{self._name} can't keep the launcher's far side in ~/.cache/launcher: {text}"

    def _silent(self, line: str) -> str:
        """Why the far side ended without a word."""
        assert self._stream is not None
        code, complaint = self._stream.exit_code(), self._stream.complaint()
        said = complaint.splitlines()[-1] if complaint else line.strip()
        if self.address.transport == "openssh" and code == 255:
            return self._openssh_failed(complaint)
        if code in (126, 127):
            return (
                f"{self._name} has no {self.address.python or 'python3'} that could be run ({said}); Python 3.10 or "
                "newer is needed there, outside any container: name it with cluster.python=/path/to/python3"
            )
        ended = f" (exit code {code})" if code else ""
        return f"{self._name} lets you in but runs no command{ended}: {said or _LOGIN_SCRIPTS}"

    def _unbegun(self) -> str:
        return (
            f"{self._name} has not started a command in {self.silence:.0f} s: the network or the host is stuck; or "
            f"{_LOGIN_SCRIPTS}"
        )

    def _openssh_failed(self, complaint: str) -> str:
        said = [line.strip() for line in complaint.splitlines() if line.strip()]
        # Of a changed key, ssh names the command that forgets the old one.
        told = [line for line in said if line.startswith("ssh-keygen ")] + (said[-1:] or ["it says nothing"])
        advice = "`ssh` with the same words shows more"
        if "Host key verification failed" in complaint:
            told[-1] = "host key verification failed"
            advice = "connect once with `ssh` itself to see the key and accept it"
        elif "terminating, " in told[-1] or "UNKNOWN port" in told[-1]:
            told = said[:1]  # the configuration, or what stands before the host: the reason comes first
        elif "Permission denied" in complaint:
            advice = "open a master connection first (ssh -fNM, with a ControlPath in ~/.ssh/config), or `ssh-add`"
        return f"ssh can't connect to {self._name}: {'; '.join(told)}; {advice}"

    @property
    def _name(self) -> str:
        return self.address.destination

    def _send(self, data: bytes) -> None:
        assert self._stream is not None
        try:
            self._stream.write(data, self.silence)
        except Stalled:
            raise Lost(self._stalled()) from None
        except OSError as error:
            raise Lost(f"the connection to {self._name} was lost: {error or type(error).__name__}") from None

    def _receive(self) -> Any:
        try:
            return wire.receive(self._read)
        except wire.Ended:
            complaint = self._stream.complaint() if self._stream else ""
            said = f": {complaint.splitlines()[-1]}" if complaint else ""
            raise Lost(f"the connection to {self._name} was lost{said}") from None
        except wire.Garbled as error:
            raise Lost(f"{self._name} sent what the launcher did not: {error}") from None

    def _read(self, count: int) -> bytes:
        """So many bytes. Raises `wire.Ended`, or `Lost` after a silence."""
        assert self._stream is not None
        parts, missing = [], count
        while missing:
            if not self._held:
                try:
                    self._held = self._stream.read(self.silence)
                except Stalled:
                    raise Stuck(self._stalled()) from None
                except OSError as error:
                    raise Lost(f"the connection to {self._name} was lost: {error}") from None
                if not self._held:
                    raise wire.Ended
            part, self._held = self._held[:missing], self._held[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _stalled(self) -> str:
        return (
            f"{self._name} has said nothing for {self.silence:.0f} s: the network or the host is stuck. What runs "
            "there goes on; try again"
        )


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
