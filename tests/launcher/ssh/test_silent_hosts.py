"""Hosts that take a connection and say nothing, with a person who does not wait for them."""

from __future__ import annotations

import contextlib
import socket

import pytest

from launcher.runs import remote_record
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
from tests.launcher.terminal import launcher


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("verb", ["ls", "watch"])
def test_ctrl_c_ends_what_waits_for_silent_hosts(verb: str, transport: str) -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        for number, server in enumerate(servers):
            where = f"me@127.0.0.1:{server.getsockname()[1]}"
            address = Address(destination=where, transport=transport, connect_timeout=3600)
            pointer = Pointer(address=address, root="/runs", token="t", created=0.0)
            remote_record.create(f"20260102-030405-brave-otter-00{number}", pointer)
        listing = launcher("ls") if verb == "ls" else launcher("watch", "20260102-030405-brave-otter")
        stack.callback(listing.close)
        asked = [stack.enter_context(server.accept()[0]) for server in servers]
        assert len(asked) == len(servers)
        listing.press(b"\x03")
        assert listing.wait() == 130
