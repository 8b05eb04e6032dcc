"""The transport `openssh`: the system's ssh, with its own configuration, agents and open master connection.

For sites that ask for a one-time password: a person opens the master connection by hand, and this uses it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import subprocess
import time

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh.stream import KEPT, Stalled

PIPE = 2**20
"""Bytes that a pipe holds at most; by default 64 KiB."""


def argv(address: Address, *options: str) -> list[str]:
    """The ssh command up to the host; a remote command may follow."""
    words = ["ssh", *options, "-o", f"ConnectTimeout={address.connect_timeout}"]
    words += ["-F", address.config] if address.config else []
    words += ["-p", str(address.port)] if address.port else []
    words += ["-l", address.user] if address.user else []
    return [*words, "--", address.host]


def opened(address: Address, command: str) -> OpenSsh:
    """Connect and start a command. Raises `Unavailable` where this machine has no ssh."""
    # A shared master keeps its own checks; a new connection checks the host key and detects a dead network.
    options = ["-T", "-e", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o", "ForwardX11=no"]
    try:
        return OpenSsh([*argv(address, *options), command])
    except FileNotFoundError:
        raise Unavailable("cluster.transport=openssh needs the program ssh, which is not on this machine") from None


class OpenSsh:
    """A `Stream` through a child process."""

    def __init__(self, words: list[str]) -> None:
        self._stderr = b""
        # A session of its own: Ctrl-C in the terminal is for the launcher, which then ends this itself.
        self._child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._pipes = (self._child.stdin, self._child.stdout, self._child.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    def read(self, timeout: float) -> bytes:
        deadline, watched = time.monotonic() + timeout, [self._out, self._err]
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(watched, [], [], left)
            if self._err in ready and not self._read_stderr():
                watched.remove(self._err)
            if self._out in ready:
                return os.read(self._out, 2**16)
        raise Stalled

    def write(self, data: bytes, timeout: float) -> None:
        rest, deadline = memoryview(data), time.monotonic() + timeout
        while rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Stalled
            _, writable, _ = select.select([], [self._in], [], left)
            try:
                rest = rest[os.write(self._in, rest) if writable else 0 :]
            except BrokenPipeError:
                return

    def complaint(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1)
        for _ in range(PIPE // KEPT):
            if not self._read_stderr():
                break
        # ssh ends its lines with CR LF.
        return self._stderr.decode(errors="replace").replace("\r\n", "\n").strip()

    def exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(1)
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipes[0].close()
        try:
            self._child.wait(2)  # the far side ends with its input
        except subprocess.TimeoutExpired:
            self._child.terminate()
            self._child.wait()
        for pipe in self._pipes[1:]:
            pipe.close()

    def _read_stderr(self) -> bool:
        """Read what ssh wrote to stderr. False if there is nothing now, or it was closed."""
        try:
            text = os.read(self._err, KEPT)
        except BlockingIOError:
            return False
        self._stderr = (self._stderr + text)[-KEPT:]
        return bool(text)


def explanation(destination: str, complaint: str) -> str:
    """Why ssh could not connect, from what it printed, and what to do."""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in complaint:
        return _changed_key(destination, complaint)
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    reason = lines[-1] if lines else "it prints nothing"
    advice = "`ssh` with the same words shows more"
    if "Host key verification failed" in complaint:
        reason = "host key verification failed"
        advice = "connect once with `ssh` itself to see the key and accept it"
    elif "terminating, " in reason or "UNKNOWN port" in reason:
        reason = lines[0]  # an error of the configuration or of a ProxyCommand: the reason comes first
    elif "Permission denied" in complaint:
        advice = (
            "check the user's name, `ssh-add` your key, or copy its public half there (ssh-copy-id); where a password "
            "or a code has to be typed, open a master connection first (ssh -fNM, with a ControlPath in ~/.ssh/config)"
        )
    return f"ssh can't connect to {destination}: {reason}; {advice}"


def _changed_key(destination: str, complaint: str) -> str:
    """Only a fingerprint and a command of one form are taken from the complaint: people copy the command, and whoever
    answers there may have written lines of their own."""
    shown = re.search(r"SHA256:[A-Za-z0-9+/]{43}", complaint)
    shows = f"it shows {shown[0]}, and another one is known" if shown else "it shows another one"
    text = f"the host key of {destination}, or of a hop before it, is not the one that is known: {shows}. "
    text += "Somebody may be listening in\nIf the host was really set up anew, forget the old key with\n"
    command = "ssh-keygen -R HOST"
    for line in complaint.splitlines():
        with contextlib.suppress(ValueError):
            words = shlex.split(line)
            if len(words) == 5 and words[:2] == ["ssh-keygen", "-f"] and words[3] == "-R":
                command = shlex.join(words)
                break
    return f"{text}  {command}\nand connect with `ssh` itself to compare and accept the new one"
