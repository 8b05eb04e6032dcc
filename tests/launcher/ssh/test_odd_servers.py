"""Servers that speak SSH and fail in the middle of it: while keys are checked, and when a command is to start."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import paramiko
import pytest

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import fabric_transport
from tests.launcher.ssh.ways import keys
from tests.testbed.proxy import Proxy


class Server(paramiko.ServerInterface):
    """Accepts any session. `login` says what happens when a key is to be checked: "accept", "reject", "cut" (the
    connection ends) or "reset". A command is neither accepted nor refused until `over`."""

    def __init__(self, *, login="accept"):
        self.over = threading.Event()
        self.login = login
        self.proxy = None
        self.transport = None
        self.offered = []
        """The public keys that were checked."""

    def check_auth_publickey(self, username, key):
        self.offered.append(key.asbytes())
        if self.login == "cut":
            self.proxy.cut()
        if self.login == "reset":
            self.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.sock.close()
        return paramiko.AUTH_FAILED if self.login == "reject" else paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "publickey"

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        self.over.wait(600)
        return False


@contextlib.contextmanager
def reached(tmp_path, server, files=1):
    """An address at which the server answers, through a proxy unless it resets the connection. The client has so many
    key files."""
    named, own = [keys(tmp_path, name=f"id-{number}") for number in range(files)], keys(tmp_path, name="host")
    with socket.create_server(("127.0.0.1", 0)) as listening, Proxy(listening.getsockname()[1]) as server.proxy:

        def serve():
            server.transport = paramiko.Transport(listening.accept()[0])
            server.transport.add_server_key(paramiko.Ed25519Key(filename=str(own)))
            server.transport.start_server(threading.Event(), server)

        threading.Thread(target=serve, daemon=True).start()
        port = server.proxy.to if server.login == "reset" else server.proxy.port
        known = tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
        lines = ("HostName 127.0.0.1", f"Port {port}", *(f"IdentityFile {path}" for path in named))
        more = ("IdentitiesOnly yes", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile /dev/null")
        (tmp_path / "config").write_text("\n  ".join(("Host odd", *lines, *more)) + "\n")
        yield Address(destination="odd", config=str(tmp_path / "config"), connect_timeout=60)
        server.over.set()


LOST = r"the connection was lost during the login .*; try again"


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("login", ["cut", "reset"])
def test_a_connection_that_is_cut_during_the_login_is_not_reported_as_a_rejected_key(tmp_path, files, login):
    with reached(tmp_path, Server(login=login), files) as address, pytest.raises(Unavailable, match=LOST):
        fabric_transport.opened(address, "true")


@pytest.mark.parametrize("noticed", [True, False])
def test_a_connection_that_is_cut_between_two_keys_is_reported_as_lost(tmp_path, monkeypatch, noticed):
    server, send = Server(login="reject"), paramiko.Transport.auth_publickey

    def after_a_cut(transport, user, key):
        if server.offered and noticed:
            server.proxy.cut()
            transport.join(60)
        elif server.offered:
            transport.sock.shutdown(socket.SHUT_WR)  # the next key is the first that can't be sent
        return send(transport, user, key)

    monkeypatch.setattr(paramiko.Transport, "auth_publickey", after_a_cut)
    with reached(tmp_path, server, 2) as address, pytest.raises(Unavailable, match=LOST):
        fabric_transport.opened(address, "true")
    assert len(server.offered) == 1


def test_a_server_that_never_starts_the_command_is_not_waited_for(tmp_path, monkeypatch):
    start = fabric_transport._start
    monkeypatch.setattr(fabric_transport, "_start", lambda channel, command, seconds: start(channel, command, 1))
    late = pytest.raises(Unavailable, match="odd opens no session: it has not started a command in 1 s")
    with reached(tmp_path, Server()) as address, late:
        fabric_transport.opened(address, "true")
