"""The transport `fabric`: a command over a checked connection, and what to do where there is none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import paramiko

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import strict_connection
from launcher.ssh.stream import KEPT, Stalled
from launcher.ssh.strict_connection import Strict

KEEPALIVE = 10
"""Seconds between two signs of life of the connection itself, so that routers on the way keep it."""
WINDOW = 2**22
"""Bytes in flight towards us: 40 MB/s at a round trip of 100 ms."""


def opened(address: Address, command: str) -> Channel:
    """Connect and start a command. Raises `Unavailable` with what to do."""
    connection = strict_connection.connection(address)
    try:
        for hop in connection.hops():
            _open(hop, address)
        transport = connection.transport
        transport.set_keepalive(KEEPALIVE)
        channel = transport.open_session(window_size=WINDOW, timeout=address.connect_timeout)
        channel.settimeout(address.connect_timeout)
        _start(channel, command, address.connect_timeout)
    except BaseException as error:
        connection.close()
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            raise Unavailable(f"{address.destination} opens no session: {error or type(error).__name__}") from None
        raise
    return Channel(connection, channel)


def _start(channel: Any, command: str, seconds: float) -> None:
    """Start a command. paramiko waits forever for the server's confirmation; closing the channel ends the wait."""
    late, until = threading.Timer(seconds, _close, [channel]), time.monotonic() + seconds
    late.daemon = True
    late.start()
    try:
        channel.exec_command(command)
    except (paramiko.SSHException, EOFError):
        if time.monotonic() >= until:
            raise TimeoutError(f"it has not started a command in {seconds} s") from None
        raise
    finally:
        late.cancel()


def _close(channel: Any) -> None:
    with contextlib.suppress(EOFError, OSError):  # it sends a message, which fails if the connection was cut
        channel.close()


def _open(connection: Strict, address: Address) -> None:
    place = connection.settings.place
    try:
        connection.open()
    except socket.gaierror:
        raise Unavailable(
            f"there is no host {connection.host}: {address.config or '~/.ssh/config'} has no such entry, and the name "
            "does not resolve"
        ) from None
    except (TimeoutError, paramiko.ChannelException, paramiko.ssh_exception.NoValidConnectionsError) as error:
        raise Unavailable(f"{place} can't be connected to: {_why(error)}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        if isinstance(connection.gateway, str):
            raise Unavailable(f"{place} can't be reached through its ProxyCommand, {connection.gateway}") from None
        raise Unavailable(f"{place} does not speak SSH as expected: {error or type(error).__name__}") from None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer; is it up, and is this the right port?"
    if isinstance(error, paramiko.ChannelException):
        return f"the host before it can't reach it ({error.text})"
    return "the connection is refused; is its sshd running, and is this the right port?"


class Channel:
    """A `Stream` through a channel of paramiko's."""

    def __init__(self, connection: Strict, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._stderr = b""

    def read(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        try:
            data: bytes = self._channel.recv(2**16)
        except TimeoutError:
            raise Stalled from None
        except EOFError:  # as in `write`: reading acknowledges data
            return b""
        self._read_stderr()
        return data

    def write(self, data: bytes, timeout: float) -> None:
        rest, deadline = memoryview(data), time.monotonic() + timeout
        while rest:
            self._channel.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                rest = rest[self._channel.send(rest) :]
            except TimeoutError:
                raise Stalled from None
            except (OSError, EOFError):  # the latter is paramiko's error for a connection that was cut this moment
                return

    def complaint(self) -> str:
        self._read_stderr()
        return self._stderr.decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        if not self._channel.status_event.wait(1):
            return None
        code: int = self._channel.exit_status
        return None if code < 0 else code

    def close(self) -> None:
        _close(self._channel)
        for hop in reversed(list(self._connection.hops())):
            hop.close()

    def _read_stderr(self) -> None:
        """Read what has arrived of stderr, at most one window: a host may write to it without end."""
        for _ in range(WINDOW // KEPT):
            if not self._channel.recv_stderr_ready():
                return
            self._stderr = (self._stderr + self._channel.recv_stderr(KEPT))[-KEPT:]
