"""Where the testbed lives: one folder, its ports, and the commands that are run to build what is in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"
# Below the range that the kernel hands to outgoing connections, so that a port stays free while its server is down.
PORTS = range(20000, 32000)
# A Unix socket's path may be 107 bytes long, and the longest of ours is 45 below the folder.
LONGEST_FOLDER = 60
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TestbedError(Exception):
    """Something real could not be brought up; the message says what, and what it said last."""

    __test__ = False  # not a test class, whatever pytest thinks of the name


@dataclass(frozen=True, slots=True)
class Bed:
    """The testbed's folder. All paths below it have their one home here."""

    folder: Path

    def part(self, name: str) -> Path:
        """A part's own folder, made if missing."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        return self.part("logs") / f"{name}.log"

    @property
    def shared(self) -> Path:
        """A folder that "both nodes" see and anyone may write to, as a cluster's scratch file system."""
        return self.folder / "shared"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One `up` or `down` at a time; a second one waits for the first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def ports(self) -> dict[str, int]:
        """The ports recorded so far, by server name."""
        try:
            recorded: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        except FileNotFoundError:
            return {}
        return recorded

    def choose_ports(self, names: Sequence[str], ours: Sequence[str]) -> None:
        """Record a free port for every name. A recorded port is kept, unless its server is down (it isn't in `ours`)
        and a stranger has taken it since."""
        ports = self.ports()
        for name in names:
            if name in ports and (name in ours or is_free(ports[name])):
                continue
            candidates = (port for port in random.sample(PORTS, len(PORTS)) if port not in ports.values())
            ports[name] = next(port for port in candidates if is_free(port))
        write(self.folder / "ports.json", json.dumps(ports, indent=1))


def find() -> Bed:
    """The testbed of this checkout: `TESTBED_DIR`, or `.testbed` in the repository."""
    folder = os.environ.get("TESTBED_DIR")
    return Bed(Path(folder).absolute() if folder else Path(__file__).resolve().parents[2] / ".testbed")


def check_folder(folder: Path) -> None:
    """Refuse a folder that a part would trip over later, in words that say why."""
    text = str(folder)
    if len(text) > LONGEST_FOLDER:
        raise TestbedError(
            f"{text} is {len(text)} characters long, and Unix sockets in it allow {LONGEST_FOLDER}: "
            "set TESTBED_DIR to a shorter folder"
        )
    odd = sorted(set(text) & set(" \t%:,\\'\"#$"))
    if odd:
        raise TestbedError(f"{text} holds {' '.join(map(repr, odd))}, which Slurm or Docker would read as syntax")
    for parent in [folder, *folder.parents]:
        if parent.exists() and not parent.stat().st_mode & 0o001:
            raise TestbedError(
                f"{parent} is closed to ordinary users, and the testbed runs jobs as one: "
                "set TESTBED_DIR to a folder that everyone can enter"
            )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: a connection that lingers after its server ended doesn't make the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Whether a server listens on this port: looked up rather than tried, which servers log as a broken request."""
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    # Columns: number, local address:port in hexadecimal, remote address:port, state (0A is listening).
    rows = (line.split() for line in table)
    return any(row[3] == "0A" and int(row[1].split(":")[1], 16) == port for row in rows)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every server and build command gets: nothing of the caller's, so that the testbed is the same for all."""
    return {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"} | dict(
        extra or {}
    )


def run(
    argv: Sequence[object],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
) -> None:
    """Run a command with its output in `log`. Raises `TestbedError` with the log's last lines."""
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(map(str, argv))}\n".encode())
        output.flush()
        try:
            done = subprocess.run(
                list(map(str, argv)),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(env),
                timeout=timeout,
            )
        except FileNotFoundError:
            raise TestbedError(f"{argv[0]} is not installed here") from None
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{argv[0]} took more than {timeout:.0f} s\n{last_lines(log)}") from None
    if done.returncode:
        raise TestbedError(f"{' '.join(map(str, argv))} ended with {done.returncode}\n{last_lines(log)}")


def output_of(argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 30) -> str | None:
    """A command's standard output, or None when it fails: for questions, where a failure is an answer."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(env),
            timeout=timeout,
            text=True,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def last_lines(log: Path, count: int = 15) -> str:
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - 20_000))
            lines = handle.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return f"({log} was not written)"
    return "\n".join([f"last lines of {log}:", *(f"    {line}" for line in lines[-count:])])


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file aside and rename it, with this mode from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as handle:
        handle.write(text)
    aside.chmod(mode)
    os.replace(aside, path)


def remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def wait_until(condition: Callable[[], object], seconds: float, every: float = 0.05) -> bool:
    """Whether `condition()` came true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
