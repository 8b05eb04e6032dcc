"""The transport that an address names."""

from __future__ import annotations

from launcher.errors import UsageError
from launcher.runs.address import Address
from launcher.ssh import openssh_transport
from launcher.ssh.stream import Stream


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
