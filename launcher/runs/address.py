"""Where a host is and how it is reached: a value, made from the words of a request or read back from a pointer."""

from __future__ import annotations

import functools
import os
import re
from typing import Annotated, Any, NamedTuple

from launcher import admit
from launcher.admit import Refused
from launcher.errors import UsageError

_FORM = re.compile(
    r"(?:(?P<user>[^@\s:,]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^@\s:,\[\]]+))(?::(?P<port>\d{1,5}))?"
)


TRANSPORTS = ("fabric", "openssh")


def _destination(value: Any, what: str) -> str:
    text = admit.text(value, what)
    try:
        check_destination(text, what)
    except UsageError as error:
        raise Refused(str(error)) from None
    return text


class Address(NamedTuple):
    """How a machine is reached. Two equal addresses share one connection."""

    destination: Annotated[str, _destination]
    """As it was typed: `me@host:port`, or an alias of the SSH configuration."""
    transport: Annotated[str, functools.partial(admit.choice, choices=TRANSPORTS)] = "fabric"
    python: Annotated[str, admit.raw] | None = None
    """The Python that answers there; None is `python3`."""
    config: Annotated[str, admit.raw] | None = None
    """SSH configuration file, its whole path: a run is asked about from any folder. None is the user's and the
    system's."""
    connect_timeout: Annotated[int, functools.partial(admit.whole, most=86400, least=1)] = 15
    """Seconds to connect in."""

    @property
    def user(self) -> str | None:
        """None leaves it to the SSH configuration."""
        return _match(self.destination)["user"]

    @property
    def host(self) -> str:
        """The name or alias alone."""
        match = _match(self.destination)
        return match["six"] or match["host"]

    @property
    def port(self) -> int | None:
        """None leaves it to the SSH configuration."""
        port = _match(self.destination)["port"]
        return int(port) if port else None


def check_destination(destination: str, key: str) -> None:
    """Raises `UsageError` for text that can't name a host; `key` is the key that it was given for."""
    if destination.startswith("-"):
        raise UsageError(f"{key}={destination} is not a host: hosts do not begin with a dash")
    match = _FORM.fullmatch(destination)
    if match is None:
        raise UsageError(
            f"{key}={destination} is not a host; write host, me@host, me@host:port, [IPv6]:port, or an alias of your "
            "SSH configuration"
        )
    if match["port"] and not 0 < int(match["port"]) < 65536:
        raise UsageError(f"{key}={destination}: a port is a number from 1 to 65535")


def of(cluster: Any) -> Address | None:
    """The host that a cluster of `launcher.config.schema` is reached at; None for this machine."""
    destination = getattr(cluster, "host", None) or getattr(cluster, "login", None)
    if destination is None:
        return None
    return Address(
        destination=destination,
        transport=cluster.transport,
        python=cluster.python,
        config=os.path.abspath(os.path.expanduser(cluster.ssh_config)) if cluster.ssh_config else None,
        connect_timeout=cluster.connect_timeout,
    )


def _match(destination: str) -> re.Match[str]:
    match = _FORM.fullmatch(destination)
    assert match is not None, "addresses are checked before they are made"
    return match
