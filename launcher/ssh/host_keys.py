"""The known keys of a host, and whether the key that it shows is one of them.

`ssh-keygen -F` finds the lines of known_hosts files. paramiko's reader ignores patterns (`*.cluster.edu`) and
`@revoked` lines, and keeps one key of a kind for a name, while login nodes behind one name have one each. The format is
in sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from launcher.ssh.ssh_settings import run


class Key(NamedTuple):
    """A public key: its kind, as `ssh-ed25519`, and its bytes."""

    kind: str
    content: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l shows it."""
        text = base64.b64encode(hashlib.sha256(self.content).digest()).decode().rstrip("=")
        return f"{self.kind} SHA256:{text}"


class HostKeys(NamedTuple):
    """What the files say of a name."""

    keys: tuple[Key, ...] = ()
    """The host may show any of these."""
    without_port: tuple[Key, ...] = ()
    """The keys of the bare name, for a host at a non-standard port: accepted too, as ssh does."""
    revoked: tuple[Key, ...] = ()
    """Never accepted."""
    authority: bool = False
    """Whether a certificate authority is named for it (`@cert-authority`)."""


def known(name: str, files: Iterable[str]) -> HostKeys:
    """What the files say of that name; unreadable files are skipped."""
    keys: dict[str, list[Key]] = {"": [], "@revoked": [], "@cert-authority": []}
    for path in files:
        for line in run(["ssh-keygen", "-F", name.lower(), "-f", path]).stdout.splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):  # ssh-keygen's own line above each that it found
                continue
            mark = words.pop(0) if words[0].startswith("@") else ""
            try:
                keys.setdefault(mark, []).append(Key(words[1], base64.b64decode(words[2], validate=True)))
            except (binascii.Error, IndexError):
                continue
    return HostKeys(keys=tuple(keys[""]), revoked=tuple(keys["@revoked"]), authority=bool(keys["@cert-authority"]))


def of_host(host: str, port: int, alias: str | None, files: Iterable[str]) -> HostKeys:
    """What is known of a host at a port, or of its alias (HostKeyAlias) alone."""
    files = tuple(files)
    if alias or port == 22:
        return known(alias or host, files)
    own, bare = known(name_of(host, port), files), known(host, files)
    return HostKeys(own.keys, bare.keys, (*own.revoked, *bare.revoked), own.authority or bare.authority)


def name_of(host: str, port: int) -> str:
    return host if port == 22 else f"[{host}]:{port}"


def refusal(shown: Key, known: HostKeys, name: str, accept: str, forget: str) -> str:
    """Why the key that a host shows is not accepted; empty if it is. `accept` is the command that adds it to a
    known_hosts file, and `forget` the one that removes the keys of `name`."""
    if shown in known.revoked:
        return f"the host key of {name} is marked as @revoked in a known_hosts file"
    if shown in (*known.keys, *known.without_port):
        return ""
    if known.keys:
        same = [key for key in known.keys if key.kind == shown.kind]
        return (
            f"the host key of {name} is not the one that is known: it shows {shown.fingerprint}, and "
            f"{(same or known.keys)[0].fingerprint} is known. Somebody may be listening in\n"
            f"If the host was really set up anew, forget the old key and accept the new one with\n"
            f"  {forget}\n  {accept}"
        )
    text = f"the host key of {name} is not known: {shown.fingerprint}\n"
    if known.authority:
        text += (
            "A known_hosts file names an authority for such hosts (@cert-authority), and only ssh itself can check its "
            "certificates: say cluster.transport=openssh. Otherwise, if"
        )
    else:
        text += "If"
    return f"{text} that is its own, accept it with\n  {accept}"
