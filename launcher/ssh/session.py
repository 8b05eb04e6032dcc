"""A session with the launcher's agent on a host: the agent is started, then frames go both ways. Every wait ends."""

from __future__ import annotations

import time
from typing import Any

from launcher import admit
from launcher.errors import Unavailable, UsageError
from launcher.runs.address import Address
from launcher.ssh import bootstrap, openssh_transport, protocol
from launcher.ssh.archive import archive
from launcher.ssh.failures import Lost, admitting
from launcher.ssh.stream import Stalled, Stream

OPENING = 120.0
"""Seconds from the login to the start of the agent."""
NOISE = 2**17
"""Bytes that login scripts may print before the agent's first line."""
BLOCK = 2**16
"""Bytes that are sent within the seconds of silence."""
_NAME_PYTHON = (
    "name one with cluster.python=/path/to/python3; without root, uv brings one: `uv python install 3.12`, then "
    "cluster.python=~/.local/bin/python3.12"
)
_LOGIN_SCRIPTS = (
    "a login script there (.bashrc, .zshenv, .tcshrc, config.fish) may end the shell, start another one or wait for "
    "input, even without a terminal: check that `ssh` to it with the command `true` ends"
)


def open_stream(address: Address, command: str) -> Stream:
    """Connect and start a command. Raises `Unavailable`, and `UsageError` where the transport is not installed."""
    if address.transport == "openssh":
        return openssh_transport.opened(address, command)
    try:
        from launcher.ssh import fabric_transport
    except ModuleNotFoundError as error:
        if error.name not in ("fabric", "paramiko"):
            raise
        raise UsageError(
            "SSH needs fabric: pip install 'amp-launcher[ssh]'; or say cluster.transport=openssh, which uses the "
            "system's ssh"
        ) from None
    return fabric_transport.opened(address, command)


class Overdue(Exception):
    """The deadline of an answer has passed."""


class Session:
    """One connected agent. Not thread-safe."""

    def __init__(self, address: Address, silence: float) -> None:
        """Connect and start the agent, which is sent where the host lacks it. Raises `Unavailable`."""
        self.silence = silence
        """Seconds without a byte after which the connection is treated as dead."""
        self._address, self._name = address, address.destination
        self._buffer = memoryview(b"")
        digest, zipped = archive()
        self._stream = open_stream(address, bootstrap.command(digest, len(zipped), address.python))
        self.deadline = time.monotonic() + OPENING
        """When `receive` raises `Overdue`, by the monotonic clock."""
        try:
            word = self._word()
            if word == "need":
                self.send(zipped)
                word = self._word(started=True)
            if word != "ready":
                raise self._refusal(word)
        except Overdue:
            self.close()
            raise Unavailable(self._not_started(OPENING)) from None
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Raises `Lost`."""
        try:
            for start in range(0, len(data), BLOCK):
                self._stream.write(data[start : start + BLOCK], self.silence)
        except Stalled:
            raise Lost(self._stalled()) from None

    def receive(self, longest: int) -> Any:
        """The next frame: bytes, or an object of at most `longest` bytes. Raises `Overdue`, `Lost` and `BadAnswer`."""
        try:
            with admitting(self._name):
                frame = protocol.receive(self._read, longest)
                return frame if isinstance(frame, bytes) else admit.group(frame, "a frame")
        except protocol.Ended:
            raise self._lost() from None
        except Stalled:
            raise Lost(self._stalled()) from None

    def close(self) -> None:
        self._stream.close()

    def _read(self, count: int) -> bytes:
        """Exactly so many bytes. Raises `protocol.Ended`, `Stalled` and `Overdue`."""
        parts, missing = [], count
        while missing:
            if not self._buffer:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise Overdue
                try:
                    self._buffer = memoryview(self._stream.read(min(self.silence, left)))
                except Stalled:
                    if left < self.silence:
                        raise Overdue from None
                    raise
                if not self._buffer:
                    raise protocol.Ended
            part, self._buffer = self._buffer[:missing], self._buffer[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _word(self, started: bool = False) -> str:
        """The next line of the bootstrap program, which has `started`; what login scripts print is skipped."""
        seen = 0
        while True:
            line = b""
            while not line.endswith(b"\n"):
                try:
                    line += self._read(1)
                except Stalled:
                    raise Lost(self._not_started(self.silence)) from None
                except protocol.Ended:
                    raise self._lost() if started else self._ended(line.decode(errors="replace")) from None
                seen += 1
                if seen > NOISE:
                    raise Unavailable(f"{self._name} prints without end at login and starts no command")
            mark, _, word = admit.clean(line.decode(errors="replace").strip()).partition(" ")
            if mark == bootstrap.MARK:
                return word

    def _refusal(self, word: str) -> Unavailable:
        kind, _, text = word.partition(" ")
        if kind == "old":
            version, _, program = text.partition(" ")
            floor = ".".join(map(str, bootstrap.FLOOR))
            return Unavailable(
                f"{self._name} has Python {version} ({program}), and {floor} or newer is needed there; {_NAME_PYTHON}"
            )
        return Unavailable(f"{self._name} can't keep the launcher's agent in ~/.cache/launcher: {text}")

    def _lost(self) -> Lost:
        """The connection or the agent ended; the agent's last complaint may say why."""
        complaint = self._stream.complaint().splitlines()
        why = f": {admit.clean(complaint[-1])}" if complaint else ""
        return Lost(f"the connection to {self._name} was lost{why}")

    def _ended(self, line: str) -> Unavailable:
        """Why the command ended before the agent's first line."""
        code, complaint = self._stream.exit_code(), admit.clean_lines(self._stream.complaint())
        last = complaint.splitlines()[-1] if complaint else line.strip()
        if self._address.transport == "openssh" and code == 255:
            return Unavailable(openssh_transport.explanation(self._name, complaint))
        if code in (126, 127):
            return Unavailable(
                f"{self._name} has no {self._address.python or 'python3'} that could be run ({last}); Python 3.10 or "
                f"newer is needed there, outside any container: {_NAME_PYTHON}"
            )
        ended = f" (exit code {code})" if code else ""
        return Unavailable(f"{self._name} accepts the login but runs no command{ended}: {last or _LOGIN_SCRIPTS}")

    def _not_started(self, seconds: float) -> str:
        return (
            f"{self._name} has not started a command in {seconds:.0f} s: the network or the host is stuck; or "
            f"{_LOGIN_SCRIPTS}"
        )

    def _stalled(self) -> str:
        return (
            f"{self._name} has sent nothing for {self.silence:.0f} s: the network or the host is stuck. Runs there go "
            "on; try again"
        )
