"""Servers that speak SSH and fail in the middle of it: while keys are checked, and when a command is to start."""

from __future__ import annotations

import contextlib
import socket
import threading

import paramiko
import pytest

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import fabric_transport
from tests.launcher.ssh.ways import keys
from tests.testbed.proxy import Proxy


class Server(paramiko.ServerInterface):
    """Accepts any key and session. With `cut` the connection is cut when a key is to be checked; else a command is
    neither accepted nor refused until `over`."""

    def __init__(self, *, cut=False):
        self.over = threading.Event()
        self.cut = cut
        self.proxy = None

    def check_auth_publickey(self, username, key):
        if self.cut:
            self.proxy.cut()
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "publickey"

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        self.over.wait(600)
        return False


@contextlib.contextmanager
def reached(tmp_path, server, files=1):
    """An address at which the server answers, through a proxy. The client has so many key files."""
    named, own = [keys(tmp_path, name=f"id-{number}") for number in range(files)], keys(tmp_path, name="host")
    with socket.create_server(("127.0.0.1", 0)) as listening, Proxy(listening.getsockname()[1]) as server.proxy:

        def serve():
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(paramiko.Ed25519Key(filename=str(own)))
            transport.start_server(threading.Event(), server)

        threading.Thread(target=serve, daemon=True).start()
        port, known = server.proxy.port, tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
        lines = ("HostName 127.0.0.1", f"Port {port}", *(f"IdentityFile {path}" for path in named))
        more = ("IdentitiesOnly yes", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile /dev/null")
        (tmp_path / "config").write_text("\n  ".join(("Host odd", *lines, *more)) + "\n")
        yield Address(destination="odd", config=str(tmp_path / "config"), connect_timeout=60)
        server.over.set()


@pytest.mark.parametrize("files", [1, 2])
def test_a_connection_that_is_cut_during_the_login_is_not_reported_as_a_rejected_key(tmp_path, files):
    lost = pytest.raises(Unavailable, match=r"the connection was lost during the login .*; try again")
    with reached(tmp_path, Server(cut=True), files) as address, lost:
        fabric_transport.opened(address, "true")


def test_a_server_that_never_starts_the_command_is_not_waited_for(tmp_path, monkeypatch):
    start = fabric_transport._start
    monkeypatch.setattr(fabric_transport, "_start", lambda channel, command, seconds: start(channel, command, 1))
    late = pytest.raises(Unavailable, match="odd opens no session: it has not started a command in 1 s")
    with reached(tmp_path, Server()) as address, late:
        fabric_transport.opened(address, "true")
