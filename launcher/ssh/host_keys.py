"""The known keys of a host: known_hosts files, read as ssh reads them.

paramiko's reader ignores patterns (`*.cluster.edu`) and `@revoked` lines, and keeps one key of a kind for a name, while
login nodes behind one name have one each. The format is in sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import NamedTuple


class Key(NamedTuple):
    """A public key: its kind, as `ssh-ed25519`, and its bytes."""

    kind: str
    content: bytes


class Known(NamedTuple):
    """What the files say of a name."""

    keys: tuple[Key, ...] = ()
    """The host may show any of these."""
    without_port: tuple[Key, ...] = ()
    """Of a host at a non-standard port, those of its bare name, which are accepted too, as ssh does."""
    revoked: tuple[Key, ...] = ()
    """Never accepted."""
    authority: bool = False
    """Whether a certificate authority is named for it (`@cert-authority`)."""


def known(name: str, files: Iterable[str]) -> Known:
    """What the files say of that name; unreadable files are skipped."""
    keys: list[Key] = []
    revoked: list[Key] = []
    authority = False
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                lines = stream.read().splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            mark = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not _is_of(words[0], name.lower()):
                continue
            try:
                key = Key(words[1], base64.b64decode(words[2], validate=True))
            except binascii.Error:
                continue
            authority = authority or mark == "@cert-authority"
            if not mark:
                keys.append(key)
            elif mark == "@revoked":
                revoked.append(key)
    return Known(keys=tuple(keys), revoked=tuple(revoked), authority=authority)


def of_host(host: str, port: int, alias: str | None, files: Iterable[str]) -> Known:
    """What is known of a host at a port, or of its alias (HostKeyAlias) alone."""
    files = tuple(files)
    if alias or port == 22:
        return known(alias or host, files)
    own, bare = known(name_of(host, port), files), known(host, files)
    return Known(own.keys, bare.keys, (*own.revoked, *bare.revoked), own.authority or bare.authority)


def name_of(host: str, port: int) -> str:
    return host if port == 22 else f"[{host}]:{port}"


def _is_of(names: str, name: str) -> bool:
    """Whether the first word of a line, a hash or patterns between commas, covers the name."""
    if names.startswith("|1|"):
        return _is_hash_of(names, name)
    matched = False
    for pattern in names.lower().split(","):
        text = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(text, name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _is_hash_of(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
