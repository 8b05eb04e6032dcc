"""The transport `fabric`: a command over a checked connection, and what to do where there is none."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import threading
import time
from typing import Any

import paramiko

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import host_keys, strict_connection
from launcher.ssh.host_keys import Key
from launcher.ssh.key_login import LoginCut, NoKey, SecondFactor
from launcher.ssh.stream import KEPT, Stalled
from launcher.ssh.strict_connection import ChangedKey, RevokedKey, Strict, UnknownKey

KEEPALIVE = 10
"""Seconds between two signs of life of the connection itself, so that routers on the way keep it."""
WINDOW = 2**22
"""Bytes in flight towards us: 40 MB/s at a round trip of 100 ms."""
MASTER = (
    "open a master connection with the system's ssh (ControlMaster auto, ControlPath and ControlPersist in "
    "~/.ssh/config, then log in once with `ssh`), and say cluster.transport=openssh"
)


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
    except (paramiko.SSHException, OSError, EOFError) as error:
        connection.close()
        raise Unavailable(f"{address.destination} opens no session: {error or type(error).__name__}") from None
    except Unavailable:
        connection.close()
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
    """Open one hop. Raises `Unavailable`."""
    place = f"{connection.user}@{connection.host}:{connection.port}"
    try:
        connection.open()
    except UnknownKey as error:
        raise Unavailable(_unknown(error, connection)) from None
    except ChangedKey as error:
        raise Unavailable(_changed(error, connection)) from None
    except RevokedKey:
        raise Unavailable(f"the host key of {_name(connection)} is marked as @revoked in a known_hosts file") from None
    except SecondFactor:
        raise Unavailable(
            f"{place}: key accepted, but the server asks for a second factor, which a person has to type: {MASTER}"
        ) from None
    except LoginCut as error:
        raise Unavailable(
            f"{place}: the connection was lost during the login ({error}); try again. If that repeats, the host "
            "closes it: see its log, or offer fewer keys (IdentitiesOnly in ~/.ssh/config)"
        ) from None
    except NoKey:
        missing = "the key of such a file (IdentitiesOnly is set)" if connection.settings.only_these_keys else "one"
        raise Unavailable(
            f"{place} asks for a key and there is none: no key file (IdentityFile) can be used, and no agent "
            f"holds {missing}{_agent(connection)}"
        ) from None
    except paramiko.PasswordRequiredException as error:
        raise Unavailable(
            f"{place}: the key {error} has a passphrase and is in no agent: run `ssh-add` first{_agent(connection)}"
        ) from None
    except paramiko.BadAuthenticationType as error:
        raise Unavailable(
            f"{place} accepts none of your keys; it offers {', '.join(error.allowed_types)}. Copy your public key "
            f"there (ssh-copy-id), or, where a password or a code has to be typed, {MASTER}"
        ) from None
    except paramiko.AuthenticationException as error:
        raise Unavailable(
            f"{place} rejects your keys ({error}); copy your public key there (ssh-copy-id), or name another key for "
            f"it in ~/.ssh/config (IdentityFile){_agent(connection)}"
        ) from None
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


def _agent(connection: Strict) -> str:
    named = connection.settings.agent
    if named in (None, "none"):
        return ""
    return f"; only ssh itself uses IdentityAgent: `export SSH_AUTH_SOCK={named}`, or cluster.transport=openssh"


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer; is it up, and is this the right port?"
    if isinstance(error, paramiko.ChannelException):
        return f"the host before it can't reach it ({error.text})"
    return "the connection is refused; is its sshd running, and is this the right port?"


def _name(connection: Strict) -> str:
    """The name of its key in known_hosts files."""
    return connection.settings.key_alias or host_keys.name_of(connection.host, connection.port)


def _unknown(error: UnknownKey, connection: Strict) -> str:
    said = f"the host key of {_name(connection)} is not known: {fingerprint(error.key)}. "
    if error.authority:
        said += (
            "A known_hosts file names an authority for such hosts (@cert-authority), and only ssh itself can check its "
            "certificates: say cluster.transport=openssh. Otherwise, if"
        )
    else:
        said += "If"
    return f"{said} that is its own, accept it with\n  {_accepting(connection, error.key)}"


def _changed(error: ChangedKey, connection: Strict) -> str:
    name = _name(connection)
    return (
        f"the host key of {name} is not the one that is known: it shows {fingerprint(error.key)}, and "
        f"{fingerprint(error.known)} is known. Somebody may be listening in. If the host was really set up "
        f"anew, forget the old key and accept the new one with\n"
        f"  ssh-keygen -R '{name}' -f {connection.settings.known_hosts[0]}\n  {_accepting(connection, error.key)}"
    )


def _accepting(connection: Strict, key: Key) -> str:
    """The command that accepts a host's key; a host behind a hop is scanned from there."""
    kind = key.kind.removeprefix("ssh-").partition("-")[0]
    command = f"ssh-keyscan -t {kind} -p {connection.port} {connection.host}"
    hop, alias = connection.gateway, connection.settings.key_alias
    if isinstance(hop, Strict):
        command = f"ssh -p {hop.port} {hop.user}@{hop.host} {command}"
    if alias:
        command += f" | sed 's/^[^ ]*/{alias}/'"
    return f"{command} >> {next(iter(connection.settings.known_hosts), '~/.ssh/known_hosts')}"


def fingerprint(key: Key) -> str:
    """As ssh-keygen -l shows it."""
    text = base64.b64encode(hashlib.sha256(key.content).digest()).decode().rstrip("=")
    return f"{key.kind} SHA256:{text}"


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
            raise ConnectionResetError("it was cut") from None
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
            except EOFError:  # paramiko's error for a connection that was cut this moment
                raise ConnectionResetError("it was cut") from None

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
