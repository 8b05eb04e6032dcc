"""Ways to the testbed's sshd, right and wrong ones: SSH configurations of a test's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcher.runs.address import Address


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


def keys(folder: Path, passphrase: str = "", name: str = "id", kind: str = "ed25519") -> Path:
    """A new pair of keys."""
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path
