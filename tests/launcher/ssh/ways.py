"""Ways to the testbed's sshd, right and wrong ones: SSH configurations of a test's own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import launcher.ssh.host
from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh.host import Host


def configuration(folder: Path, testbed, *, hops: bool = False, **changes: str) -> str:
    """A configuration that knows `box`, and `hop` before it if asked. `changes` replace or add lines for both; those
    that begin with `hop_` only for the hop."""
    ssh = testbed.ssh
    base = {
        "HostName": ssh.host,
        "User": ssh.user,
        "IdentityFile": ssh.key,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": ssh.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
    }
    common = {name: value for name, value in changes.items() if not name.startswith("hop_")}
    for_hop = {name.removeprefix("hop_"): value for name, value in changes.items() if name.startswith("hop_")}
    text = _host("box", {**base, "Port": str(ssh.port), **({"ProxyJump": "hop"} if hops else {}), **common})
    text += _host("hop", {**base, "Port": str(ssh.bastion_port), **for_hop})
    path = folder / "ssh_config"
    path.write_text(text)
    return str(path)


def _host(name: str, lines: dict[str, str]) -> str:
    return "\n".join([f"Host {name}", *(f"  {key} {value}" for key, value in lines.items() if value)]) + "\n"


def address(config: str, destination: str = "box", **more) -> Address:
    return Address(destination=destination, config=config, **{"connect_timeout": 60, **more})


def hello(config: str, destination: str = "box", **more) -> dict[str, str]:
    """Connect, and give what the host says of itself."""
    with contextlib.closing(Host(address(config, destination, **more))) as host:
        return host.ask("hello", launcher.ssh.host.hello)


def refusal(config: str, destination: str = "box", **more) -> str:
    """Why the host can't be used."""
    with pytest.raises(Unavailable) as caught:
        hello(config, destination, **more)
    assert caught.value.exit_code == 3
    return str(caught.value)


@contextlib.contextmanager
def agent(folder: Path, *added: str) -> Iterator[Path]:
    """The socket of an ssh-agent that holds keys, added by these words of ssh-add in this order. Nobody confirms the
    use of those that need it."""
    path = folder / "agent"
    environment = {
        **os.environ,
        "SSH_AUTH_SOCK": str(path),
        "SSH_ASKPASS": "/bin/false",
        "SSH_ASKPASS_REQUIRE": "force",
    }
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            while not _listens(path):
                time.sleep(0.01)
            for words in added:
                subprocess.run(["ssh-add", "-q", *words.split()], check=True, capture_output=True, env=environment)
            yield path
        finally:
            process.terminate()


def _listens(path: Path) -> bool:
    """A socket is there before its server listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def keys(folder: Path, passphrase: str = "", name: str = "id", kind: str = "ed25519") -> Path:
    """A new pair of keys."""
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path
