"""Runs on this machine: each is a session of processes, or one run of a sweep whose driver is."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.containers import programs
from launcher.runs import processes, store
from launcher.runs.decode import decode
from launcher.runs.processes import Target
from launcher.runs.run_files import Files
from launcher.runs.schema import Identity, PlanRecord
from launcher.runs.states import Liveness, answering, may_live, status_of

ENGINES = ("docker", "podman")
"""Kinds of container that outlive their client, which are also the names of their clients."""


def liveness(asked: Mapping[str, Files], after: float = 0.0) -> dict[str, Liveness]:
    """What the process table says of each run now; keys are folders."""
    known = {folder: liveness_of(answering(files)) for folder, files in asked.items()}
    shot = [folder for folder, life in known.items() if life.life == "gone" and status_of(asked[folder]) is not None]
    if shot:
        # A killed shell leaves its children, which still write into the folder.
        left = processes.processes_of([Target(None, os.path.basename(folder)) for folder in shot])
        for folder, alive in zip(shot, left, strict=True):
            if alive:
                pids = ", ".join(str(process.pid) for process in alive)
                reason = f"{known[folder].reason}; left behind: process {pids} (`cancel` ends what is left)"
                known[folder] = known[folder]._replace(reason=reason)
    return known


def end(asked: Mapping[str, Files], grace: float) -> dict[str, str]:
    """By TERM, and by KILL after the grace; 0 is KILL at once."""
    remote = {}
    for folder, files in asked.items():
        shell = answering(files)
        if shell is not None and shell.host != processes.host() and may_live(files):
            remote[folder] = f"it runs on {shell.host}: cancel it there"
    local = {folder: files for folder, files in asked.items() if folder not in remote}
    survivors = processes.end([_target(*run) for run in local.items()], grace)
    for folder in local:
        _remove_container(folder)
    return remote | {
        folder: f"process {', '.join(str(process.pid) for process in alive)} does not end: the kernel holds it"
        for folder, alive in zip(local, survivors, strict=True)
        if alive
    }


def _remove_container(folder: str) -> None:
    """A container is the engine's child and outlives a killed client. Only the engine's name is taken from the plan."""
    plan = store.read_or_empty(f"{folder}/plan.json", own_in=os.path.dirname(folder))
    container = decode(PlanRecord, plan, ("container",))[0].container
    if container is not None and container.runtime.kind in ENGINES:
        programs.output([container.runtime.kind, "rm", "--force", os.path.basename(folder)])


def with_processes(asked: Mapping[str, Files]) -> set[str]:
    alive = processes.processes_of([_target(*run) for run in asked.items()])
    return {folder for folder, left in zip(asked, alive, strict=True) if left}


def liveness_of(process: Identity | None) -> Liveness:
    """What this machine knows of a run's process."""
    if not processes.boot():
        return Liveness("unknown", "this system has no /proc to look into")
    if process is None:
        return Liveness("unknown", "its files name no process")
    if process.host != processes.host():
        return Liveness("unknown", f"it runs on {process.host}, which can't be seen from here")
    if process.boot != processes.boot():
        return Liveness("gone", f"{process.host} was restarted since")
    if processes.is_alive(process):
        return Liveness("alive")
    return Liveness("gone", f"process {process.pid} is gone: killed, or ended without recording why")


def _target(folder: str, files: Files) -> Target:
    status = status_of(files)
    if status is None and files.submission and files.submission.sweep:
        # The process of a waiting run's submission also drives the other runs of its sweep.
        return Target(None, os.path.basename(folder))
    return Target(answering(files), os.path.basename(folder))
