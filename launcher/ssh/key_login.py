"""Logging in with the keys of the SSH configuration's files and of the agent.

`SSHClient` reports the error of the last thing it tried, which need not be the server's answer, takes a connection that
is cut meanwhile for a rejected key, and prompts for second factors on the terminal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import paramiko
from paramiko.auth_strategy import AuthStrategy

from launcher.ssh.ssh_settings import Settings

KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


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
        all_read = True
        for path in self._settings.keys:
            key = None
            try:
                key = _loaded(path)
            except paramiko.PasswordRequiredException:
                self._locked = path
            if key is not None:
                yield key
            all_read = all_read and key is not None
        # IdentitiesOnly allows the agent only the keys of these files.
        needs_agent = not (self._settings.only_these_keys and self._settings.keys and all_read)
        if self._settings.agent != "none" and needs_agent:
            with contextlib.closing(paramiko.Agent()) as agent:
                yield from agent.get_keys()


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
            key.load_certificate(f"{path}-cert.pub")
        return key
    return None
