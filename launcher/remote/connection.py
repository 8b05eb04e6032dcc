"""The transport `fabric`: connections whose host keys are checked, the target's and those of every hop.

fabric itself accepts any host key, a changed one too (its issues 1804 and 2071), and visits the hops of a ProxyJump in
the opposite order of OpenSSH's. Both are put right here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any, NoReturn

import paramiko
from fabric import Config, Connection

from launcher.errors import Unavailable, UsageError
from launcher.remote.address import Address
from launcher.remote.stream import Stalled

KEEPALIVE = 10
"""Seconds between two signs of life of the connection itself, so that routers on the way keep it."""
WINDOW = 2**22
"""Bytes that may be on their way to us: at 100 ms there and back, 40 MB a second."""
# What goes wrong is told by our own errors. Without a handler Python would print paramiko's traceback beside them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
DEFAULT_USER_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"


class Strict(Connection):  # type: ignore[misc]
    """A fabric connection that accepts only keys that are known, and whose hops do too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.client.set_missing_host_key_policy(_Refuse())
        for path in self.known_hosts():
            with contextlib.suppress(FileNotFoundError):
                self.client.load_system_host_keys(path)

    def known_hosts(self) -> list[str]:
        """Files of known keys that the configuration names for this host, the user's first."""
        named = self.ssh_config.get("userknownhostsfile", DEFAULT_USER_FILES).split()
        named += self.ssh_config.get("globalknownhostsfile", DEFAULT_GLOBAL_FILES).split()
        return [os.path.expanduser(each) for each in named]

    def get_gateway(self) -> Any:
        jump = self.ssh_config.get("proxyjump")
        if jump is None:
            return super().get_gateway()
        gateway = None
        for hop in () if jump.lower() == "none" else jump.split(","):
            if self.derive_shorthand(hop)["host"] == self.original_host:
                return None
            gateway = Strict(hop, config=self.config.clone(), gateway=gateway)
        return gateway

    def hops(self) -> Iterator[Strict]:
        """The connections on the way, this one last."""
        if isinstance(self.gateway, Strict):
            yield from self.gateway.hops()
        yield self


class UnknownKey(paramiko.SSHException):  # type: ignore[misc]
    """No known_hosts file has a key of that host."""

    def __init__(self, name: str, key: Any) -> None:
        super().__init__(name)
        self.name = name
        self.key = key


class _Refuse(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: Any) -> NoReturn:
        raise UnknownKey(hostname, key)


def opened(address: Address, command: str) -> Channel:
    """A command over there, started. Raises `Unavailable`, saying what to do."""
    connection = _connection(address)
    try:
        for each in connection.hops():
            _open(each, address)
        transport = connection.transport
        transport.set_keepalive(KEEPALIVE)
        channel = transport.open_session(window_size=WINDOW, timeout=address.connect_timeout)
        channel.settimeout(address.connect_timeout)
        channel.exec_command(command)
    except (paramiko.SSHException, OSError, EOFError) as error:
        connection.close()
        raise Unavailable(f"{address.destination} opens no session: {error or type(error).__name__}") from None
    except Unavailable:
        connection.close()
        raise
    return Channel(connection, channel)


def _connection(address: Address) -> Strict:
    try:
        config = Config(runtime_ssh_path=os.path.expanduser(address.config) if address.config else None)
        asked = {"user": address.user, "port": address.port}
        connection = Strict(address.host, config=config, **{name: value for name, value in asked.items() if value})
    except FileNotFoundError as error:
        raise UsageError(f"cluster.ssh_config={address.config}: {error.strerror}") from None
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize) as error:
        raise UsageError(f"the SSH configuration can't be read: {error}") from None
    for each in connection.hops():
        each.connect_timeout = address.connect_timeout
        limits = ("banner_timeout", "auth_timeout", "channel_timeout")
        each.connect_kwargs = {**each.connect_kwargs, **dict.fromkeys(limits, max(15, address.connect_timeout))}
        if str(each.ssh_config.get("identitiesonly", "no")).lower() == "yes":
            each.connect_kwargs["look_for_keys"] = False
    return connection


def _open(connection: Strict, address: Address) -> None:
    """Connect one host of the way. Raises `Unavailable`."""
    place = f"{connection.user}@{connection.host}:{connection.port}"
    try:
        connection.open()
    except UnknownKey as error:
        raise Unavailable(_unknown(error, connection)) from None
    except paramiko.BadHostKeyException as error:
        raise Unavailable(_changed(error, connection)) from None
    except paramiko.PasswordRequiredException:
        keys = ", ".join(connection.connect_kwargs.get("key_filename", ())) or "of ~/.ssh"
        raise Unavailable(
            f"{place}: the key {keys} has a passphrase, and no agent holds it: run `ssh-add` first"
        ) from None
    except paramiko.BadAuthenticationType as error:
        raise Unavailable(
            f"{place} takes none of your keys; it offers {', '.join(error.allowed_types)}. Put your public key there "
            "(ssh-copy-id), or, where a password has to be typed, open a master connection with the system's ssh and "
            "say cluster.transport=openssh"
        ) from None
    except paramiko.AuthenticationException as error:
        raise Unavailable(
            f"{place} refuses your keys ({error}); put your public key there (ssh-copy-id), or name another key for it "
            "in ~/.ssh/config (IdentityFile)"
        ) from None
    except socket.gaierror:
        raise Unavailable(
            f"there is no host {connection.host}: no entry of that name in {address.config or '~/.ssh/config'}, and "
            "the name service does not know it"
        ) from None
    except (TimeoutError, paramiko.ChannelException, paramiko.ssh_exception.NoValidConnectionsError) as error:
        raise Unavailable(f"{place} can't be connected to: {_why(error)}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unavailable(f"{place} speaks no SSH that could be understood: {error or type(error).__name__}") from None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer; is it up, and is this the right port?"
    if isinstance(error, paramiko.ChannelException):
        return f"the host before it can't reach it ({error.text})"
    return "the connection is refused; is its sshd running, and is this the right port?"


def _unknown(error: UnknownKey, connection: Strict) -> str:
    file = connection.known_hosts()[0]
    return (
        f"the host key of {error.name} is not known: {fingerprint(error.key)}. If that is its own, accept it with\n"
        f"  {_keyscan(connection, error.key)} >> {file}"
    )


def _changed(error: paramiko.BadHostKeyException, connection: Strict) -> str:
    name = connection.host if int(connection.port) == 22 else f"[{connection.host}]:{connection.port}"
    file = connection.known_hosts()[0]
    return (
        f"the host key of {name} is not the one that is known: it shows {fingerprint(error.key)}, and "
        f"{fingerprint(error.expected_key)} is known. Somebody may be listening in. If the host was really set up "
        f"anew, forget the old key and accept the new one with\n  ssh-keygen -R '{name}' -f {file}\n"
        f"  {_keyscan(connection, error.key)} >> {file}"
    )


def _keyscan(connection: Strict, key: Any) -> str:
    """The command that prints a host's key; one behind a hop is asked from there."""
    kind = str(key.get_name()).removeprefix("ssh-").partition("-")[0]
    command = f"ssh-keyscan -t {kind} -p {connection.port} {connection.host}"
    hop = connection.gateway
    return f"ssh -p {hop.port} {hop.user}@{hop.host} {command}" if isinstance(hop, Strict) else command


def fingerprint(key: Any) -> str:
    """As ssh-keygen -l shows it."""
    text = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{text}"


class Channel:
    """A `Stream` through a channel of paramiko's."""

    def __init__(self, connection: Strict, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._said = b""

    def read(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        try:
            data: bytes = self._channel.recv(2**16)
        except TimeoutError:
            raise Stalled from None
        except EOFError:  # as in `write`: it acknowledges what came
            raise ConnectionResetError("it was cut") from None
        self._hear()
        return data

    def write(self, data: bytes, timeout: float) -> None:
        self._channel.settimeout(timeout)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._channel.send(rest) :]
            except TimeoutError:
                raise Stalled from None
            except EOFError:  # paramiko's word for a connection that was cut this moment
                raise ConnectionResetError("it was cut") from None

    def complaint(self) -> str:
        self._hear()
        return self._said.decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        if not self._channel.status_event.wait(1):
            return None
        code: int = self._channel.exit_status
        return None if code < 0 else code

    def close(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # it says goodbye, which can't be where it was cut
            self._channel.close()
        for each in reversed(list(self._connection.hops())):
            each.close()

    def _hear(self) -> None:
        while self._channel.recv_stderr_ready():
            self._said = (self._said + self._channel.recv_stderr(4096))[-4096:]
