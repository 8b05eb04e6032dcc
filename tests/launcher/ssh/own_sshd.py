"""An sshd of a test's own on loopback: set up as the test wants it, and killed when it wants."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.launcher.ssh.far import until


class Sshd:
    """An sshd with these lines of configuration; `public` is the file of its public key."""

    def __init__(self, folder: Path, public: Path, lines: Mapping[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.key = " ".join(public.read_text().split()[:2])
        lines = {**lines, "Port": str(self.port), "PidFile": str(folder / f"{self.port}.pid")}
        self.conf = folder / f"sshd-{self.port}.conf"
        self.conf.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self.known_hosts = folder / f"known-{self.port}"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.key}\n")
        self.start()

    @property
    def lines(self) -> dict[str, str]:
        """What differs in the SSH configuration of those who come here; see `ways.configuration`."""
        return {"Port": str(self.port), "UserKnownHostsFile": str(self.known_hosts)}

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.conf)], stderr=subprocess.DEVNULL, start_new_session=True
        )

        def listens() -> bool:
            assert self.process.poll() is None, f"sshd refuses {self.conf.read_text()}"
            with socket.socket() as trying:
                return trying.connect_ex(("127.0.0.1", self.port)) == 0

        until(listens)

    def sessions(self) -> list[int]:
        """The processes that serve connections, but not what they started."""
        pids = [self.process.pid]
        for pid in pids:
            children = _read(f"/proc/{pid}/task/{pid}/children").split()
            pids += [int(child) for child in children if _read(f"/proc/{child}/comm") == "sshd\n"]
        return pids[1:]

    def kill(self) -> None:
        """The listener and its sessions."""
        if self.process.poll() is None:
            for pid in (self.process.pid, *self.sessions()):
                with contextlib.suppress(ProcessLookupError):  # a session that ends by itself this moment
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()


def _read(path: str) -> str:
    """A file of a process; empty if the process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class OwnSshd(Sshd):
    """The testbed's configuration at another port; `changes` replace or add lines of it."""

    def __init__(self, testbed, folder: Path, **changes: str) -> None:
        ours = Path(testbed.folder, "ssh")
        pairs = (line.partition(" ")[::2] for line in (ours / "sshd.conf").read_text().splitlines())
        super().__init__(folder, ours / "host-sshd.pub", {**dict(pairs), **changes})
