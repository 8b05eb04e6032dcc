"""Logging in with the keys of the SSH configuration's files and of the agent.

`SSHClient` reports the error of the last thing it tried, which need not be the server's answer, takes a connection that
is cut meanwhile for a rejected key, and prompts for second factors on the terminal.
"""

from __future__ import annotations

import binascii
import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

import paramiko
from paramiko.auth_strategy import AuthStrategy
from paramiko.pkey import PublicBlob

from launcher.ssh.ssh_settings import Settings

KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
MAGIC = b"openssh-key-v1\0"
"""Begins a private key in OpenSSH's own format."""


class SecondFactor(paramiko.AuthenticationException):
    """Key accepted, but the server asks for a second factor."""


class LoginCut(paramiko.SSHException):
    """The connection ended during the login, or the server did not answer."""


class NoKey(paramiko.SSHException):
    """There is no key to offer."""


class KeyLogin(AuthStrategy):
    """Offers each key once; never prompts."""

    def __init__(self, user: str, settings: Settings) -> None:
        super().__init__(ssh_config=None)
        self._user = user
        self._settings = settings
        self._locked = ""
        """A key file that has a passphrase."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Raises `SecondFactor`, `LoginCut`, `NoKey`, and paramiko's `PasswordRequiredException`,
        `BadAuthenticationType` and `AuthenticationException`: the server's answer to the last key."""
        rejected: paramiko.AuthenticationException | None = None
        with contextlib.closing(self._keys()) as keys:
            for key in keys:
                try:
                    missing = transport.auth_publickey(self._user, key)
                except paramiko.AuthenticationException as error:
                    if not transport.is_active() or "timeout" in str(error):
                        raise LoginCut(str(error)) from None
                    rejected = error
                    continue
                except (OSError, EOFError) as error:
                    raise LoginCut(str(error) or "the connection is closed") from None
                except paramiko.SSHException as error:
                    if str(error) == "No existing session":  # the connection ended before this key was sent
                        raise LoginCut("the connection is closed") from None
                    raise
                if not missing:
                    return
                if "publickey" not in missing:
                    raise SecondFactor("second factor required")
                rejected = SecondFactor("another key required")
        if rejected is None and self._locked:
            raise paramiko.PasswordRequiredException(self._locked)
        raise rejected or NoKey("no key")

    def _keys(self) -> Generator[Any, None, None]:
        offered: set[bytes] = set()
        of_files: set[bytes] = set()
        for path in self._settings.keys:
            of_files.update(_public(path))
            try:
                key = _loaded(path)
            except paramiko.PasswordRequiredException:
                self._locked = path
                continue
            if key is None:
                continue
            of_files.add(key.asbytes())
            blob = key.public_blob.key_blob if key.public_blob else key.asbytes()
            if blob not in offered:
                offered.add(blob)
                yield key
        # IdentitiesOnly allows of the agent's keys only those of these files, as ssh does.
        only = self._settings.only_these_keys
        if self._settings.agent == "none" or (only and of_files <= offered):
            return
        with contextlib.closing(paramiko.Agent()) as agent:
            for key in agent.get_keys():
                if key.blob not in offered and (key.blob in of_files or not only):
                    offered.add(key.blob)
                    yield key


def _public(path: str) -> Iterator[bytes]:
    """The public keys and certificates that belong to a key file, which may be a public key itself."""
    for name in (path, f"{path}.pub", f"{path}-cert.pub"):
        with contextlib.suppress(OSError, ValueError):
            yield PublicBlob.from_file(name).key_blob
    with contextlib.suppress(OSError, ValueError):
        yield from _public_part(path)


def _public_part(path: str) -> Iterator[bytes]:
    """The public key in a private key file of OpenSSH's own format, readable without the passphrase (PROTOCOL.key)."""
    with open(path, "rb") as stream:
        message = paramiko.Message(binascii.a2b_base64(b"".join(stream.read().splitlines()[1:-1])))
    if message.get_bytes(len(MAGIC)) == MAGIC:
        for _ in ("cipher", "kdf", "kdf options"):
            message.get_binary()
        message.get_int()  # the number of keys, always 1
        yield message.get_binary()


def _loaded(path: str) -> Any:
    """The key in a file, with its certificate; None for a kind that paramiko does not know, and where only the public
    key is there. Raises `PasswordRequiredException`."""
    for kind in KINDS:
        try:
            key = kind.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, OSError):
            continue
        if os.path.isfile(f"{path}-cert.pub"):
            with contextlib.suppress(OSError, ValueError):  # not this key's certificate: the key alone, as ssh does
                key.load_certificate(f"{path}-cert.pub")
        return key
    return None
