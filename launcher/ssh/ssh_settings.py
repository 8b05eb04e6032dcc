"""The SSH configuration of a host, as the system's ssh reads it: `ssh -G` prints it without connecting.

paramiko's reader ignores `Include`, knows fewer `Match` criteria and rejects some valid values; it is used only where
there is no ssh. See ssh_config(5).
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import paramiko

from launcher.errors import UsageError
from launcher.runs.address import Address, check

KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
"""The user's and the system's; the first value of a key counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How one host is reached."""

    host: str
    """Its real name (HostName)."""
    port: int
    user: str
    keys: tuple[str, ...]
    """Private key files (IdentityFile) that exist, or whose public key does."""
    only_these_keys: bool
    """IdentitiesOnly."""
    agent: str | None
    """IdentityAgent; None for SSH_AUTH_SOCK."""
    known_hosts: tuple[str, ...]
    """Files, the user's first."""
    key_alias: str | None
    """HostKeyAlias."""
    hops: tuple[Address, ...]
    """ProxyJump, in the order of connecting."""
    command: str | None
    """ProxyCommand, for a shell."""


def of(address: Address) -> Settings:
    """Raises `UsageError` for a configuration that can't be read, or that needs ssh itself."""
    values = _configuration(address)
    if values.get("revokedhostkeys", ["none"])[0] != "none":
        raise UsageError("only ssh itself reads RevokedHostKeys: say cluster.transport=openssh")
    one = {name: found[0] for name, found in values.items()}
    host = one.get("hostname", address.host)
    port = address.port or int(one.get("port", 22))
    user = address.user or one.get("user") or getpass.getuser()
    words = {
        "%": "%",
        "h": host,
        "n": address.host,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
        "d": os.path.expanduser("~"),
    }
    keys = [os.path.expanduser(_expanded(path, words)) for path in values.get("identityfile", ())]
    known = [one.get("userknownhostsfile", KNOWN_HOSTS), one.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)]
    command = None if one.get("proxycommand", "none").lower() == "none" else _expanded(one["proxycommand"], words)
    agent = one.get("identityagent", "SSH_AUTH_SOCK")
    return Settings(
        host=host,
        port=port,
        user=user,
        keys=tuple(path for path in keys if os.path.isfile(path) or os.path.isfile(f"{path}.pub")),
        only_these_keys=one.get("identitiesonly", "no") == "yes",
        agent=None if agent == "SSH_AUTH_SOCK" else os.path.expanduser(os.path.expandvars(agent)),
        known_hosts=tuple(os.path.expanduser(path) for files in known for path in files.split() if path != "none"),
        key_alias=one.get("hostkeyalias"),
        hops=tuple(_hops(one.get("proxyjump", "none"), address)),
        command=command,
    )


def _hops(text: str, address: Address) -> Iterable[Address]:
    """A host that is its own hop, as by a pattern that covers both, has none."""
    for word in () if text.lower() == "none" else text.split(","):
        destination = word.strip().removeprefix("ssh://")
        check(destination, "ProxyJump")
        hop = Address(destination=destination, config=address.config, connect_timeout=address.connect_timeout)
        if hop.host == address.host:
            return
        yield hop


def _configuration(address: Address) -> Mapping[str, Sequence[str]]:
    """Values by key, in lower case."""
    words = ["ssh", "-G"]
    words += ["-F", os.path.expanduser(address.config)] if address.config else []
    words += ["-p", str(address.port)] if address.port else []
    words += ["-l", address.user] if address.user else []
    try:
        done = subprocess.run(
            [*words, "--", address.host], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:
        return _read(address)
    if done.returncode != 0:
        raise UsageError(f"{_place(address)}the SSH configuration can't be read: {_first(done.stderr)}")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name.lower(), []).append(value)
    return found


def _read(address: Address) -> Mapping[str, Sequence[str]]:
    """The same as paramiko reads it, where there is no ssh."""
    config = paramiko.SSHConfig()
    for path in (address.config,) if address.config else FILES:
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            config.parse(text.splitlines())
        except FileNotFoundError as error:
            if address.config:
                raise UsageError(f"{_place(address)}{error.strerror}") from None
            continue
        except paramiko.ConfigParseError as error:
            raise UsageError(f"the SSH configuration {path} can't be read: {error}") from None
        if re.search(r"^\s*include\s", text, re.IGNORECASE | re.MULTILINE):
            raise UsageError(f"{path} has an Include, which needs the program ssh, and this machine has none")
    try:
        found = config.lookup(address.host)
    except paramiko.CouldNotCanonicalize as error:
        raise UsageError(f"the SSH configuration can't be read: {error}") from None
    values = {name: value if isinstance(value, list) else [value] for name, value in found.items() if value is not None}
    return {"identityfile": DEFAULT_KEYS, **values}


def _place(address: Address) -> str:
    return f"cluster.ssh_config={address.config}: " if address.config else ""


def _first(complaint: str) -> str:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    return lines[0] if lines else "ssh -G prints nothing"


def _expanded(text: str, words: Mapping[str, str]) -> str:
    """The text with its tokens (`%h`) replaced in one pass; unknown ones stay."""
    return re.sub(r"%(.)", lambda found: words.get(found[1], found[0]), text)
