"""Servers as processes of our own: started, recorded by pid and start time, checked, and ended by pid.

No systemd, no daemonizing: each server runs in the foreground of its own session, so that the pid recorded is the
server's. A record names the boot and the start time too, so that a pid used again by a stranger is not taken for ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed.bed import Bed, TestbedError, environment, last_lines, wait_until, write


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """How a server is started, and how it says that it is ready."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    configuration: str = ""  # text of its configuration: when it differs from what the server started with, restart
    leftovers: tuple[Path, ...] = ()  # files of a killed predecessor that would keep it from starting
    wait: float = 60.0  # seconds to become ready
    patience: float = 15.0  # seconds from TERM to KILL

    @property
    def fingerprint(self) -> str:
        text = json.dumps([self.argv, dict(self.environment), self.configuration])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one boot: a pid alone is used again."""

    pid: int
    start: int  # field 22 of /proc/PID/stat, clock ticks after boot
    boot: str

    @staticmethod
    def of(pid: int) -> Process | None:
        """The living process of this pid. A zombie is dead: a PID 1 that doesn't reap leaves it for ever."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] in "ZX" else Process(pid, int(fields[19]), boot_id())

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def end(self, patience: float) -> None:
        """TERM, then KILL for one that is still there after `patience` seconds."""
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10)):
            self.send(number)
            if wait_until(lambda: not self.alive, seconds):
                return
        raise TestbedError(f"process {self.pid} is still there after KILL")

    def send(self, number: int) -> None:
        """Send a signal, unless this process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def recorded(bed: Bed, name: str) -> Process | None:
    """The process that was started under this name, alive or not."""
    record = _record(bed, name)
    return Process(record["pid"], record["start"], record["boot"]) if record else None


def running(bed: Bed, name: str) -> Process | None:
    """The living process of this name."""
    process = recorded(bed, name)
    return process if process and process.alive else None


def names(bed: Bed) -> list[str]:
    return sorted(path.stem for path in bed.part("processes").glob("*.json"))


def ensure(bed: Bed, server: Server) -> bool:
    """Have this server running and ready, with the configuration given; whether it had to be started.

    Raises `TestbedError` with the last lines of its log.
    """
    process = running(bed, server.name)
    if process:
        same = (_record(bed, server.name) or {}).get("fingerprint") == server.fingerprint
        # One that an interrupted call started may still be starting, and a busy machine may answer late.
        if same and wait_until(lambda: server.ready() or not process.alive, server.wait) and process.alive:
            return False
        process.end(server.patience)
    start(bed, server)
    return True


def start(bed: Bed, server: Server) -> Process:
    log = bed.log(server.name)
    for path in server.leftovers:
        path.unlink(missing_ok=True)
    with open(log, "ab") as output:
        try:
            child = subprocess.Popen(
                server.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(server.environment),
                cwd="/",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise TestbedError(f"{server.name}: {server.argv[0]} is not installed here") from None
    process = Process.of(child.pid)
    if process:
        record = asdict(process) | {"argv": server.argv, "fingerprint": server.fingerprint}
        write(_record_path(bed, server.name), json.dumps(record, indent=1))
    wait_until(lambda: child.poll() is not None or server.ready(), server.wait)
    if child.poll() is not None:
        raise TestbedError(f"{server.name} ended with {child.returncode} while starting\n{last_lines(log)}")
    if not server.ready():
        raise TestbedError(f"{server.name} did not answer within {server.wait:.0f} s\n{last_lines(log)}")
    # Reaps the child should it end while this program still runs; afterwards it is init's.
    threading.Thread(target=child.wait, daemon=True).start()
    assert process
    return process


def stop(bed: Bed, name: str, patience: float = 15.0) -> bool:
    """End a server, and what is left of its descendants; whether it was running."""
    process = running(bed, name)
    if process:
        children = descendants(process.pid)
        process.end(patience)
        for child in children:
            child.end(2)
    _record_path(bed, name).unlink(missing_ok=True)
    return process is not None


def descendants(pid: int) -> list[Process]:
    """Every process below this one in the tree, as it is now."""
    children: dict[int, list[int]] = {}
    for other in everyone():
        try:
            text = Path(f"/proc/{other}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(other)
    below = [pid]
    for parent in below:
        below += children.get(parent, [])
    return [process for process in map(Process.of, below[1:]) if process]


def everyone() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _record(bed: Bed, name: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(_record_path(bed, name).read_text())
    except FileNotFoundError:
        return None
    return record


def _record_path(bed: Bed, name: str) -> Path:
    return bed.part("processes") / f"{name}.json"
