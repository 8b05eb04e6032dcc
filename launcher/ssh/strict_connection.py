"""fabric connections whose host keys are checked, the target's and those of every hop.

fabric itself accepts any host key, changed ones included (its issues 1804 and 2071), reads the SSH configuration
differently from ssh, and visits the hops of a ProxyJump in reverse order. So `ssh_settings` and `host_keys` decide, and
fabric gets the result.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import paramiko
from fabric import Config, Connection

from launcher.errors import Unavailable, UsageError
from launcher.runs.address import Address
from launcher.ssh import host_keys, ssh_settings
from launcher.ssh.host_keys import HostKeys, Key
from launcher.ssh.key_login import KeyLogin
from launcher.ssh.ssh_settings import Settings

# Our own errors report failures. Without a handler Python would print paramiko's tracebacks as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Strict(Connection):
    """A fabric connection that accepts known host keys only and never prompts."""

    def __init__(self, address: Address, settings: Settings, gateway: Strict | None) -> None:
        known = host_keys.of_host(settings.host, settings.port, settings.key_alias, settings.known_hosts)
        # A login may take longer than the first answer of a server: it asks directories, and modules that wait.
        options: dict[str, Any] = dict.fromkeys(("auth_timeout", "channel_timeout"), max(15, address.connect_timeout))
        options["banner_timeout"] = address.connect_timeout
        options["auth_strategy"] = KeyLogin(settings)
        options["transport_factory"] = _transport(known)
        super().__init__(
            settings.host,
            user=settings.user,
            port=settings.port,
            config=Config(ssh_config=paramiko.SSHConfig()),  # empty: the settings have all of it
            gateway=gateway or settings.command or False,
            connect_timeout=address.connect_timeout,
            connect_kwargs=options,
        )
        self._set(settings=settings, command=None)
        # It decides about every key, since paramiko itself loads none.
        self.client.set_missing_host_key_policy(_Check(self, known))

    def open_gateway(self) -> Any:
        if not isinstance(self.gateway, str):
            return super().open_gateway()
        # As ssh does it. paramiko's ProxyCommand runs no shell and does not notice the command's end.
        ours, theirs = socket.socketpair()
        with theirs:
            command = ["sh", "-c", f"exec {self.gateway}"]
            end = theirs.fileno()
            self._set(command=subprocess.Popen(command, stdin=end, stdout=end, start_new_session=True))
        return ours

    def close(self) -> None:
        super().close()
        self.client.close()  # fabric leaves a connection open if its login failed
        if self.command is not None:
            self.command.terminate()
            self.command.wait()

    def hops(self) -> Iterator[Strict]:
        """The connections on the way, this one last."""
        if isinstance(self.gateway, Strict):
            yield from self.gateway.hops()
        yield self


class _Check(paramiko.MissingHostKeyPolicy):
    """Decides about every host key."""

    def __init__(self, connection: Strict, known: HostKeys) -> None:
        self._connection, self._known = connection, known

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Raises `Unavailable` for a key that is not known to be the host's."""
        settings = self._connection.settings
        shown = Key(key.get_name(), key.asbytes())
        name = settings.key_alias or host_keys.name_of(settings.host, settings.port)
        forget = f"ssh-keygen -R '{name}' -f {_known_hosts(settings)}"
        why = host_keys.refusal(shown, self._known, name, _accepting(self._connection, shown), forget)
        if why:
            raise Unavailable(why)


def _known_hosts(settings: Settings) -> str:
    return next(iter(settings.known_hosts), "~/.ssh/known_hosts")


def _accepting(connection: Strict, key: Key) -> str:
    """The command that accepts a host's key; a host behind a hop is scanned from there."""
    settings, hop = connection.settings, connection.gateway
    kind = key.kind.removeprefix("ssh-").partition("-")[0]
    command = f"ssh-keyscan -t {kind} -p {settings.port} {settings.host}"
    if isinstance(hop, Strict):
        command = f"ssh -p {hop.port} {hop.user}@{hop.host} {command}"
    if settings.key_alias:
        command += f" | sed 's/^[^ ]*/{settings.key_alias}/'"
    return f"{command} >> {_known_hosts(settings)}"


def _transport(known: HostKeys) -> type[paramiko.Transport]:
    """A transport that prefers the kinds of host keys that are known: a host shows only one of its keys."""
    kinds = [key.kind for key in (*known.keys, *known.without_port)]

    class Transport(paramiko.Transport):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            options = self.get_security_options()
            # A key of the kind ssh-rsa has several signature types.
            preferred = [
                kind for kind in options.key_types if kind.replace("rsa-sha2-", "ssh-rsa ").split()[0] in kinds
            ]
            options.key_types = [*preferred, *(kind for kind in options.key_types if kind not in preferred)]

    return Transport


def connection(address: Address, gateway: Strict | None = None, beyond: tuple[str, ...] = ()) -> Strict:
    """The connection and its gateways, not yet opened. `beyond` is the hosts that are reached through this one."""
    settings = ssh_settings.of(address)
    if address.host in beyond:
        raise UsageError(f"ProxyJump is circular: {', '.join((*beyond, address.host))}")
    for hop in settings.hops if gateway is None else ():
        gateway = connection(hop, gateway, (*beyond, address.host))
    return Strict(address, settings, gateway)
