"""GPUs of a host that people share: who uses each, and how a run takes some for itself.

A GPU is taken by a lock (`flock`) on a file named after its UUID. The run's shell takes it and its processes inherit
it, so the kernel releases it when the last of them has ended, in whatever way. The files are on the host's own disk in
the first folder that everybody may write to, and hold a line with the run and its user. Other users' files in such a
folder can't be opened with O_CREAT (fs.protected_regular), so they are created once, then opened without it.

A GPU with a process but without a lock is not free: people without this launcher use it. Nor is one with much memory in
use and no visible process, as seen from inside a container, unless a display is attached, which needs some, or memory
in use shows no process: where it is the system's too (GH200, GB200), a virtual machine's (vGPU) or Windows' (WSL). A
GPU that can't be used is not free either; one whose memory had errors is taken where no other is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from launcher import bash_files
from launcher.containers.devices import VARIABLE
from launcher.containers.programs import output
from launcher.containers.words import to_bash
from launcher.probe.facts import INDEX, Gpu

REFUSED = 75
"""Exit code of a script whose GPUs are taken, and of a sweep whose first cell's are."""

SHOW = f"export {VARIABLE} CUDA_VISIBLE_DEVICES=${VARIABLE}"
"""The line of bash that shows a job the GPUs that were taken."""

HINT = "wait_gpus=true waits for them"


def functions() -> str:
    """The bash that lists GPUs and takes them. Needs flock and setsid (util-linux)."""
    return bash_files.text("launcher.probe", "gpu_locks.sh")


def take(count: int, pool: Sequence[str], run: str, *, wait: bool) -> str:
    """The line of a run's script that takes GPUs, or ends the run."""
    return f"take_gpus {count} {to_bash(' '.join(pool))} {to_bash(run)} {'yes' if wait else to_bash('')}"


def states() -> list[Gpu]:
    """The GPUs of this machine in the order of the bus, with who is on them; none where that can't be told."""
    return parse((output(["bash", "-c", f"{functions()}\ngpu_look_in_turn"]) or "").splitlines())


def parse(lines: Iterable[str]) -> list[Gpu]:
    """What `gpu_look` prints."""
    fields = [line.split("|") for line in lines]
    unknown: dict[str, Any] = {"name": "unknown", "memory_mib": 0, "capability": "", "driver": ""}
    return [
        Gpu(index=int(cells[0]), uuid=cells[1], holder=cells[2], fault=cells[3], **unknown)
        for cells in fields
        if len(cells) == 4 and INDEX.fullmatch(cells[0])
    ]


def refusal(count: int, pool: Sequence[Gpu], host: str) -> str:
    """Why so many GPUs can't be had of those; empty where they can."""
    busy = [f"GPU {gpu.index}: {gpu.holder}" for gpu in pool if gpu.holder]
    free = len(pool) - len(busy)
    if count <= free:
        return ""
    fewer = f"gpus={free} takes what is free, " if free else ""
    holders = "; ".join(busy) or "the others are not there any more"
    return f"GPUs asked for on {host}: {count}, free: {free}; {holders} ({fewer}{HINT})"
