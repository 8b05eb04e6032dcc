"""A server that speaks SSH, lets us in, and never answers a question of the protocol itself."""

from __future__ import annotations

import socket
import threading

import paramiko
import pytest

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import fabric_transport
from tests.launcher.ssh.ways import keys


class Silent(paramiko.ServerInterface):
    """Accepts any key and session; a command is neither accepted nor refused until `over`."""

    def __init__(self):
        self.over = threading.Event()

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "publickey"

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        self.over.wait(600)
        return False


def test_a_server_that_never_starts_the_command_is_not_waited_for(tmp_path, monkeypatch):
    start, silent = fabric_transport._start, Silent()
    monkeypatch.setattr(fabric_transport, "_start", lambda channel, command, seconds: start(channel, command, 1))
    key, own = keys(tmp_path, name="id"), keys(tmp_path, name="host")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve():
            server = paramiko.Transport(listening.accept()[0])
            server.add_server_key(paramiko.Ed25519Key(filename=str(own)))
            server.start_server(threading.Event(), silent)

        threading.Thread(target=serve, daemon=True).start()
        (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
        config = tmp_path / "config"
        config.write_text(
            f"Host silent\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {tmp_path}/known\n  GlobalKnownHostsFile /dev/null\n"
        )
        with pytest.raises(Unavailable, match="silent opens no session: it has not started a command in 1 s"):
            fabric_transport.opened(Address(destination="silent", config=str(config), connect_timeout=60), "true")
        silent.over.set()
