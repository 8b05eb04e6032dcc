"""Logging in with the keys of the SSH configuration's files and of the agent.

`SSHClient` reports the error of the last thing it tried, which need not be the server's answer, takes a connection that
is cut meanwhile for a rejected key, and prompts for second factors on the terminal.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import paramiko
from paramiko.auth_strategy import AuthStrategy
from paramiko.pkey import PublicBlob

from launcher.errors import Unavailable
from launcher.ssh.ssh_settings import Settings

KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
MAGIC = b"openssh-key-v1\0"
"""Begins a private key in OpenSSH's own format."""
MASTER = (
    "open a master connection with the system's ssh (ControlMaster auto, ControlPath and ControlPersist in "
    "~/.ssh/config, then log in once with `ssh`), and say cluster.transport=openssh"
)


class KeyLogin(AuthStrategy):
    """Offers each key once; never prompts."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(ssh_config=None)
        self._settings = settings
        self._locked = ""
        """A key file that has a passphrase."""
        self._failed = ""
        """That the agent lists no keys, or did not sign with one that it holds."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Raises `Unavailable` with the server's answer to the last key."""
        refused = ""
        with contextlib.closing(self._keys()) as keys:
            for key in keys:
                refused = self._offer(transport, key)
                if not refused:
                    return
        raise self._unavailable(self._failed or refused or self._none())

    def _offer(self, transport: paramiko.Transport, key: Any) -> str:
        """Log in with a key; returns why it is refused. Raises `Unavailable` where no other key would help."""
        try:
            missing = transport.auth_publickey(self._settings.user, key)
        except paramiko.BadAuthenticationType as error:
            return (
                f" accepts none of your keys; it offers {', '.join(error.allowed_types)}. Copy your public key there "
                f"(ssh-copy-id), or, where a password or a code has to be typed, {MASTER}"
            )
        except paramiko.AuthenticationException as error:
            if not transport.is_active() or "timeout" in str(error):
                raise self._unavailable(self._failed or _cut(str(error))) from None
            return (
                f" rejects your keys ({error}); copy your public key there (ssh-copy-id), or name another key for it "
                f"in ~/.ssh/config (IdentityFile){self._agent_hint}"
            )
        except (OSError, EOFError) as error:
            raise self._unavailable(self._failed or _cut(str(error))) from None
        except paramiko.SSHException as error:
            if str(error) == "No existing session":  # the connection ended before this key was sent
                raise self._unavailable(self._failed or _cut("")) from None
            raise
        text = f": key accepted, but the server asks for a second factor, which a person has to type: {MASTER}"
        if missing and "publickey" not in missing:
            raise self._unavailable(text)
        return text if missing else ""

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._settings.place}{why}")

    def _none(self) -> str:
        """Why there was no key to offer."""
        if self._locked:
            return (
                f": the key {self._locked} has a passphrase and is in no agent: run `ssh-add` first{self._agent_hint}"
            )
        missing = "the key of such a file (IdentitiesOnly is set)" if self._settings.only_these_keys else "one"
        return (
            " asks for a key and there is none: no key file (IdentityFile) can be used, and no agent holds "
            f"{missing}{self._agent_hint}"
        )

    @property
    def _agent_hint(self) -> str:
        agent = self._settings.agent
        if agent in (None, "none"):
            return ""
        return f"; only ssh itself uses IdentityAgent: `export SSH_AUTH_SOCK={agent}`, or cluster.transport=openssh"

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
        try:
            agent = paramiko.Agent()
        except paramiko.SSHException as error:
            self._failed = f": the agent lists no keys ({error}), and no other key is accepted; start it again"
            return
        with contextlib.closing(agent):
            for key in agent.get_keys():
                if key.blob not in offered and (key.blob in of_files or not only):
                    offered.add(key.blob)
                    key.sign_ssh_data = functools.partial(self._signed, key, key.sign_ssh_data)
                    yield key

    def _signed(self, key: paramiko.AgentKey, sign: Callable[..., bytes], *words: Any, **named: Any) -> bytes:
        """A signature of the agent's; an empty one, which the server rejects, where it gives none: the error would end
        the connection before other keys are offered."""
        try:
            return sign(*words, **named)
        except paramiko.SSHException:
            self._failed = (
                f": the agent does not sign with its key {key.comment or key.get_name()}, and no other key is "
                "accepted; confirm its use, insert its token, or `ssh-add` the key again"
            )
            return b""


def _cut(why: str) -> str:
    return (
        f": the connection was lost during the login ({why or 'the connection is closed'}); try again. If that "
        "repeats, the host closes it: see its log, or offer fewer keys (IdentitiesOnly in ~/.ssh/config)"
    )


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
