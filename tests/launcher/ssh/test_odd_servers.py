"""Servers that speak SSH and fail in the middle of it: while keys are checked, and when a command is to start."""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import subprocess
import threading

import paramiko
import pytest

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import fabric_transport
from tests.launcher.ssh import ways
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
def reached(tmp_path, server, files=1, identities=None, only="yes"):
    """An address at which the server answers, through a proxy unless it resets the connection. The client has so many
    key files, or the lines `identities`, and `only` as IdentitiesOnly."""
    own = keys(tmp_path, name="host")
    if identities is None:
        identities = [f"IdentityFile {keys(tmp_path, name=f'id-{number}')}" for number in range(files)]
    with socket.create_server(("127.0.0.1", 0)) as listening, Proxy(listening.getsockname()[1]) as server.proxy:

        def serve():
            server.transport = paramiko.Transport(listening.accept()[0])
            server.transport.add_server_key(paramiko.Ed25519Key(filename=str(own)))
            server.transport.start_server(threading.Event(), server)

        threading.Thread(target=serve, daemon=True).start()
        port = server.proxy.to if server.login == "reset" else server.proxy.port
        known = tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
        lines = ("HostName 127.0.0.1", f"Port {port}", *identities)
        more = (f"IdentitiesOnly {only}", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile /dev/null")
        (tmp_path / "config").write_text("\n  ".join(("Host odd", *lines, *more)) + "\n")
        yield Address(destination="odd", config=str(tmp_path / "config"), connect_timeout=60)
        server.over.set()


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An ssh-agent that holds two new keys, `other` and then `mine`, as in SSH_AUTH_SOCK."""
    with ways.agent(tmp_path, *(str(keys(tmp_path, name=name)) for name in ("other", "mine"))) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path


def refuse(tmp_path, server, match, **options):
    """Log in, which fails with that message."""
    with reached(tmp_path, server, **options) as address, pytest.raises(Unavailable, match=match):
        fabric_transport.opened(address, "true")


def public(tmp_path, name):
    return base64.b64decode((tmp_path / f"{name}.pub").read_text().split()[1])


def lock(tmp_path):
    """Give the key `mine` a passphrase."""
    command = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(tmp_path / "mine")]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.mark.parametrize(
    "left", ["locked", "locked without public", "public", "public is named", "default", "readable"]
)
def test_identities_only_allows_of_the_agents_keys_those_of_the_key_files(tmp_path, agent, monkeypatch, left):
    mine, server, identities = public(tmp_path, "mine"), Server(login="reject"), [f"IdentityFile {tmp_path / 'mine'}"]
    if left.startswith("locked"):
        lock(tmp_path)
    elif left == "default":
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".ssh").mkdir()
        (tmp_path / "mine.pub").rename(tmp_path / ".ssh" / "id_ed25519.pub")
        identities = []
    elif left != "readable":
        (tmp_path / "mine").unlink()
    if left == "locked without public":
        (tmp_path / "mine.pub").unlink()
    if left == "public is named":
        identities = [f"IdentityFile {tmp_path / 'mine.pub'}"]
    refuse(tmp_path, server, "rejects your keys", identities=identities)
    assert server.offered == [mine]


def test_a_key_whose_certificate_cannot_be_read_is_offered_without_it(tmp_path):
    server, identities = Server(login="reject"), [f"IdentityFile {keys(tmp_path, name='mine')}"]
    (tmp_path / "mine-cert.pub").write_text("not a certificate\n")
    refuse(tmp_path, server, "rejects your keys", identities=identities)
    assert server.offered == [public(tmp_path, "mine")]


def test_identities_only_without_a_key_file_offers_nothing(tmp_path, agent):
    server, identities = Server(login="reject"), ["IdentityFile none"]
    refuse(tmp_path, server, r"no agent holds the key of such a file \(IdentitiesOnly is set\)", identities=identities)
    assert server.offered == []


@pytest.mark.parametrize(("named", "others"), [("SSH_AUTH_SOCK", ["other"]), ("none", [])])
def test_a_key_that_is_in_a_file_and_in_the_agent_is_offered_once(tmp_path, agent, named, others):
    server, identities = Server(login="reject"), [f"IdentityFile {tmp_path / 'mine'}", f"IdentityAgent {named}"]
    refuse(tmp_path, server, "rejects your keys", identities=identities, only="no")
    assert server.offered == [public(tmp_path, name) for name in ("mine", *others)]


@pytest.mark.parametrize("answer", [b"\0\0\0\1\5", b""], ids=["refuses", "hangs up"])
def test_an_agent_that_lists_no_keys_is_named(tmp_path, monkeypatch, answer):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent"))
        listening.listen()

        def serve():
            with listening.accept()[0] as asked:
                asked.recv(100)
                asked.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        refuse(tmp_path, Server(), ": the agent lists no keys", identities=["IdentityFile none"], only="no")


LOST = r"the connection was lost during the login \(.+\); try again"


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("login", ["cut", "reset"])
def test_a_connection_that_is_cut_during_the_login_is_not_reported_as_a_rejected_key(tmp_path, files, login):
    refuse(tmp_path, Server(login=login), LOST, files=files)


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
    refuse(tmp_path, server, LOST, files=2)
    assert len(server.offered) == 1


def test_a_server_that_never_starts_the_command_times_out(tmp_path, monkeypatch):
    start = fabric_transport._start
    monkeypatch.setattr(fabric_transport, "_start", lambda channel, command, seconds: start(channel, command, 1))
    refuse(tmp_path, Server(), "odd opens no session: it has not started a command in 1 s")
