"""A host as it is typed, taken apart."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from launcher.admit import Refused
from launcher.errors import UsageError
from launcher.runs import address
from launcher.runs.address import Address
from launcher.runs.decode import admitted


@pytest.mark.parametrize(
    ("typed", "user", "host", "port"),
    [
        ("box", None, "box", None),
        ("me@box.edu", "me", "box.edu", None),
        ("me@box:1", "me", "box", 1),
        ("box:65535", None, "box", 65535),
        ("[fe80::1]", None, "fe80::1", None),
        ("me@[::1]:22", "me", "::1", 22),
    ],
)
def test_a_destination_is_a_user_a_host_and_a_port(typed, user, host, port):
    address.check_destination(typed, "cluster.host")
    made = Address(typed)
    assert (made.user, made.host, made.port) == (user, host, port)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("-oProxyCommand=x", "hosts do not begin with a dash"),
        ("", "is not a host; write host"),
        ("me@", "is not a host; write host"),
        ("a b", "is not a host; write host"),
        ("box,other", "is not a host; write host"),
        ("::1", "is not a host; write host"),
        ("box:0", "a port is a number from 1 to 65535"),
        ("box:65536", "a port is a number from 1 to 65535"),
    ],
)
def test_what_names_no_host_is_refused_here_and_in_a_pointer(typed, why):
    with pytest.raises(UsageError, match=f"^cluster.host={typed}.*{why}"):
        address.check_destination(typed, "cluster.host")
    with pytest.raises(Refused, match=why):
        admitted(Address, {"destination": typed}, "it")


def test_the_address_of_a_cluster_is_its_host_or_its_login_node(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    how = {"transport": "openssh", "python": "python3.11", "connect_timeout": 5}
    assert address.of(SimpleNamespace(kind="local")) is None
    assert address.of(SimpleNamespace(host="box", ssh_config=None, **how)) == Address("box", config=None, **how)
    slurm = SimpleNamespace(login="node", ssh_config="ssh/config", **how)
    assert address.of(slurm) == Address("node", config=os.fspath(tmp_path / "ssh" / "config"), **how)
