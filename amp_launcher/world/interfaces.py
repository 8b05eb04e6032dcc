"""The network interface over which this node reaches another one."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFCONF, _IFREQ, _MOST = 0x8912, 40, 128  # Linux, 64 bits: the bytes of a struct ifreq, and how many are asked for


def toward(host: str) -> str:
    """Its name, by the route to that host; empty where there is none, or its name is not known. Nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
        return _ipv4().get(own, "") if family == socket.AF_INET else _ipv6().get(own.partition("%")[0], "")
    except OSError:
        return ""


def _ipv4() -> dict[str, str]:
    """Address -> interface."""
    rows = array.array("B", bytes(_IFREQ * _MOST))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        wanted = struct.pack("iP", len(rows), rows.buffer_info()[0])
        (size,) = struct.unpack_from("i", fcntl.ioctl(asking, _SIOCGIFCONF, wanted))
    data, found = rows.tobytes(), {}
    for start in range(0, size, _IFREQ):
        label = data[start : start + 16].partition(b"\0")[0].decode(errors="replace")
        found[socket.inet_ntoa(data[start + 20 : start + 24])] = label.partition(":")[0]
    return found


def _ipv6() -> dict[str, str]:
    rows = [line.split() for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()]
    return {str(ipaddress.IPv6Address(int(row[0], 16))): row[-1] for row in rows}
