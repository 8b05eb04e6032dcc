"""The SSH configuration of a host, as the system's ssh reads it: `ssh -G` prints it without connecting.

paramiko's reader ignores `Include`, knows fewer `Match` criteria and rejects some valid values. See ssh_config(5).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import Unavailable, UsageError
from launcher.runs.address import Address, check_destination
from launcher.ssh import openssh_transport

SECONDS = 30.0
"""Longest time to read the configuration of a host."""


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

    @property
    def place(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def of(address: Address) -> Settings:
    """Raises `UsageError` for a configuration that can't be read, or that needs ssh itself; `Unavailable` without the
    program ssh."""
    values = _configuration(address)
    one = {name: given[0] for name, given in values.items()}
    if one.get("revokedhostkeys", "none") != "none":
        raise UsageError("only ssh itself reads RevokedHostKeys: say cluster.transport=openssh")
    words = {
        "%": "%",
        "h": one["hostname"],
        "i": str(os.getuid()),
        "k": one.get("hostkeyalias", address.host),
        "n": address.host,
        "p": one["port"],
        "r": one["user"],
        "u": getpass.getuser(),
        "d": os.path.expanduser("~"),
    }
    keys = [_path(_expanded(path, words)) for path in values.get("identityfile", ())]
    known = f"{one['userknownhostsfile']} {one['globalknownhostsfile']}".split()
    command = one.get("proxycommand", "none")
    agent = one.get("identityagent", "SSH_AUTH_SOCK")
    return Settings(
        host=one["hostname"],
        port=int(one["port"]),
        user=one["user"],
        keys=tuple(path for path in keys if os.path.isfile(path) or os.path.isfile(f"{path}.pub")),
        only_these_keys=one["identitiesonly"] == "yes",
        agent=None if agent == "SSH_AUTH_SOCK" else _path(agent),
        known_hosts=tuple(os.path.expanduser(path) for path in known if path != "none"),
        key_alias=one.get("hostkeyalias"),
        hops=tuple(_hops(one.get("proxyjump", "none"), address)),
        command=None if command.lower() == "none" else _expanded(command, words),
    )


def _hops(text: str, address: Address) -> Iterable[Address]:
    """A host that is its own hop, as by a pattern that covers both, has none."""
    for word in () if text.lower() == "none" else text.split(","):
        destination = word.strip().removeprefix("ssh://")
        check_destination(destination, "ProxyJump")
        hop = Address(destination=destination, config=address.config, connect_timeout=address.connect_timeout)
        if hop.host == address.host:
            return
        yield hop


def _configuration(address: Address) -> Mapping[str, Sequence[str]]:
    """Values by key, in lower case."""
    done = run(openssh_transport.argv(address, "-G"))
    if done.returncode != 0:
        place = f"cluster.ssh_config={address.config}: " if address.config else ""
        complaint = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = complaint[0] if complaint else "ssh -G prints nothing"
        raise UsageError(f"{place}the SSH configuration can't be read: {why}")
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name.lower(), []).append(value)
    return values


def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The output of a program of OpenSSH's client, whatever its exit code. The commands of `Match exec` in the SSH
    configuration end with it. Raises `Unavailable`."""
    pipe = subprocess.PIPE
    try:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unavailable(
            f"SSH needs the program {argv[0]}, which is not on this machine: install OpenSSH's client "
            "(Debian: openssh-client)"
        ) from None
    try:
        out, err = started.communicate(timeout=SECONDS)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Unavailable(
                f"{' '.join(argv)} has not ended in {SECONDS:g} s: does a Match exec of the SSH configuration wait?"
            ) from None
        raise
    return subprocess.CompletedProcess(argv, started.returncode, out, err)


def _path(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text))


def _expanded(text: str, words: Mapping[str, str]) -> str:
    """The text with its tokens (`%h`) replaced in one pass; unknown ones stay."""
    return re.sub(r"%(.)", lambda match: words.get(match[1], match[0]), text)
