"""Which processes belong to a run on this machine, whether they live, and how they are ended.

A process is known by its pid, its start time (field 22 of /proc/PID/stat, in clock ticks since boot), the boot and the
host: a pid alone is soon another's. A run's own process is the shell of its run.sh, which leads a session. The session
is not all of the run: torchrun gives each worker a session of its own. So its processes are the members of the
session, everything that carries its LAUNCHER_RUN_ID, and the children of both.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.runs.decode import decode
from launcher.runs.schema import Identity, Status

ENDED = "ZX"
"""Letters of process states that are dead: a zombie only waits for its parent, which may never come."""

TERM_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
SHELL_GRACE = 2.0
"""Seconds for a run's shell to record its exit status after its children have ended."""


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    start: int


class Target(NamedTuple):
    """A run whose processes are looked for or ended: its shell, where known, and its name."""

    shell: Identity | None
    run: str


def host() -> str:
    return os.uname().nodename


@functools.cache
def boot() -> str:
    """The id of this boot of this machine; empty where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def identity(pid: int) -> Identity | None:
    """Who the process of that pid is; None where none lives."""
    process = _process(pid)
    return Identity(host(), boot(), pid, process.start) if process else None


def from_json(value: Mapping[str, Any] | None) -> Identity | None:
    """An identity from a run's file; None for one that isn't complete."""
    return complete(decode(Status, {"process": value})[0].process)


def complete(process: Identity | None) -> Identity | None:
    """The process, unless its record is incomplete: a script may be killed while it finds out who it is."""
    return process if process and process.host and process.boot else None


def to_json(process: Identity | None) -> dict[str, Any] | None:
    return process._asdict() if process else None


def is_alive(process: Identity) -> bool:
    """Whether this very process lives, here. One of another host or boot doesn't."""
    current = _process(process.pid)
    return current is not None and current.start == process.start and (process.host, process.boot) == (host(), boot())


# Finding


def processes_of(targets: Sequence[Target]) -> list[list[Process]]:
    """The living processes of each run on this machine, its shell included if it lives; one look at /proc for all."""
    table = {process.pid: process for process in _table()}
    named = _carrying(table, "LAUNCHER_RUN_ID", {target.run for target in targets})
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    of_targets = []
    for target in targets:
        reached = set(named.get(target.run, ()))
        shell = target.shell
        # The session is the run's as long as its leader lives. After that its number may have been given again, unless
        # something in it still carries the run's name.
        if shell and (is_alive(shell) or shell.pid in {table[pid].session for pid in reached}):
            reached.update(process.pid for process in table.values() if process.session == shell.pid)
        waiting = list(reached)
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child not in reached:
                    reached.add(child)
                    waiting.append(child)
        of_targets.append([table[pid] for pid in sorted(reached - {os.getpid()})])
    return of_targets


def carrying(name: str, values: set[str]) -> set[str]:
    """Those values that a living process of this machine has in that variable of its environment."""
    return set(_carrying([process.pid for process in _table()], name, values))


def _carrying(candidates: Iterable[int], name: str, values: set[str]) -> dict[str, list[int]]:
    pids: dict[str, list[int]] = {}
    for pid in candidates:
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                environment = stream.read()
        except OSError:  # ended meanwhile, or another user's
            continue
        _, key, after = (b"\0" + environment).partition(f"\0{name}=".encode())
        value = after.split(b"\0", 1)[0].decode("utf-8", "replace")
        if key and value in values:
            pids.setdefault(value, []).append(pid)
    return pids


def _table() -> list[Process]:
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return []
    processes = (_process(int(name)) for name in names if name.isdigit())
    return [process for process in processes if process is not None]


def _process(pid: int) -> Process | None:
    """The living process of that pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            line = stream.read()
    except OSError:
        return None
    # The command's name stands in brackets and may hold blanks and brackets itself.
    fields = line[line.rindex(b")") + 2 :].split()
    if fields[0].decode() in ENDED:
        return None
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]))


# Ending


def end(targets: Sequence[Target], grace: float = TERM_GRACE) -> list[list[Process]]:
    """End every process of the runs: TERM, after the grace KILL, both for all runs at once. The shells go last, so that
    they can still write down how their children ended. Returns, for each run, the processes that outlived even KILL,
    which the kernel holds in an uninterruptible wait."""
    if grace > 0:
        _signal(_without_shells(targets), signal.SIGTERM)
        _wait(targets, grace)
    _signal(_without_shells(targets), signal.SIGKILL)
    if _wait(targets, SHELL_GRACE):
        for _ in range(20):
            _signal(_all(targets), signal.SIGKILL)
            if not _wait(targets, 0.25):
                break
    return processes_of(targets)


def _all(targets: Sequence[Target]) -> list[Process]:
    return [process for of_run in processes_of(targets) for process in of_run]


def _without_shells(targets: Sequence[Target]) -> list[Process]:
    shells = {(target.shell.pid, target.shell.start) for target in targets if target.shell}
    return [process for process in _all(targets) if (process.pid, process.start) not in shells]


def _wait(targets: Sequence[Target], seconds: float) -> bool:
    """Whether anything still lives after so many seconds; returns as soon as nothing does."""
    deadline = time.monotonic() + seconds
    while alive := bool(_all(targets)):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    return alive


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        now = _process(process.pid)
        if now is not None and now.start == process.start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
