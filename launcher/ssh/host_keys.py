"""Which keys of a host are known: files of known hosts, read as ssh reads them.

paramiko's reader takes no patterns (`*.cluster.edu`), passes over `@revoked` lines, and knows one key of a kind for a
name, where login nodes behind one name have one each. The format is in sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
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
    """Any of these is its own."""
    without_port: tuple[Key, ...] = ()
    """Of a host at a port of its own, those of its bare name: they will do too, as they do for ssh."""
    revoked: tuple[Key, ...] = ()
    """None of these is to be accepted."""
    authority: bool = False
    """Whether an authority is named (`@cert-authority`) that signs keys of such names."""


def known(name: str, files: Iterable[str]) -> Known:
    """What is known of a host by that name; files that can't be read say nothing."""
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
    """What is known of a host at a port; by its alias alone, where it has one."""
    files = tuple(files)
    if alias or port == 22:
        return known(alias or host, files)
    found, bare = known(name_of(host, port), files), known(host, files)
    return Known(found.keys, bare.keys, (*found.revoked, *bare.revoked), found.authority or bare.authority)


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
        salt, digest = (base64.b64decode(each, validate=True) for each in text[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
