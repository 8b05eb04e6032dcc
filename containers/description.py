"""A job's container, described once for every runtime.

A `Container` means the same in each of them: its arguments arrive byte for byte, its environment wins over the image's,
the job starts in its folder as its user, sees its devices, and its exit code is returned.

The image's entrypoint never runs: `apptainer exec` and pyxis skip it anyway, and what it does (print a banner, change
variables, start servers) would not be in the plan that a person reads before submitting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from launcher.containers.words import EnvArg, Word

Devices = tuple[str, ...] | Literal["job"] | None
"""GPUs by index or UUID, in the order of the job's numbering; `job` for those of the scheduler; empty for none of the
host's; None for a host without GPUs, which gets no option about them."""

SECRETS = "/run/launcher"
"""Folder inside the container for secret files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A file or folder of the host in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """The user of the job, who need not exist in the image."""

    uid: int
    gid: int
    name: str
    groups: tuple[int, ...] = ()
    """Supplementary groups, which often give access to shared data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One job's container. Paths are absolute; sources are on the host, targets inside."""

    image: str
    """Its name for the runtime: see `references.local_name`."""
    argv: tuple[Word, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    """Variables with the value that they have in the process that starts the container."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> file of mode 0600 with its value."""
    exports: str = ""
    """File of mode 0600, in a mounted folder, with shell lines that export further variables."""
    mounts: tuple[Mount, ...] = ()
    workdir: str
    devices: Devices = None
    user: User
    cache: str
    """Folder of the host that outlives the container: compiled kernels, downloaded packages, HOME."""
    name: str | EnvArg
    """Unique on its host: it finds a container that has outlived the process that started it."""
    network: Literal["host", "none"] = "host"
    ipc: Literal["host", "private"] = "host"
    """Owner of the shared memory, which data loaders and NCCL use."""
    shm_bytes: int | None = None
    """Size of a private /dev/shm; None for the runtime's default."""
    terminal: bool = False
    """Interactive, on the user's terminal."""
    reads_input: bool = False
    """Without a terminal, the command reads the standard input of what starts it."""
    forward_compatibility: bool = False
    """Its CUDA needs a newer driver than the host's: the image's own driver libraries for that come first."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Soft and hard resource limits by the names of prlimit (`memlock`, `stack`); -1 is unlimited."""

    @property
    def home(self) -> str:
        return f"{self.cache}/home"


# Caches that packages would otherwise write below HOME or /tmp, lost to the next run.
_CACHES = {
    "XDG_CACHE_HOME": "",
    "TORCHINDUCTOR_CACHE_DIR": "/torchinductor",
    "TRITON_CACHE_DIR": "/triton",
    "CUDA_CACHE_PATH": "/cuda",
}
_ALWAYS: Mapping[str, str] = MappingProxyType(
    {
        "LANG": "C.UTF-8",  # Apptainer sets C, where Python 3.6 can't print an accent
        "PYTHONNOUSERSITE": "1",  # packages of the user's ~/.local would shadow the image's
    }
)


def settle(container: Container) -> Container:
    """The same container with its caches, user and secrets as mounts, environment and argv."""
    caches = {name: container.cache + below for name, below in _CACHES.items()}
    who = {"USER": container.user.name, "LOGNAME": container.user.name}
    files = tuple(
        Mount(source=path, target=f"{SECRETS}/{name}", read_only=True) for name, path in container.secrets.items()
    )
    mounts = (*container.mounts, Mount(source=container.cache, target=container.cache), *files)
    return replace(
        container,
        argv=_command(container),
        environment={**_ALWAYS, **caches, **who, **container.environment},
        # A folder before mounts inside it: Docker sorts them so, Apptainer does not.
        mounts=tuple(sorted(mounts, key=lambda mount: mount.target.count("/"))),
        secrets={},
        exports="",
    )


COMPATIBILITY = "/usr/local/cuda/compat/lib.real"
"""Where NVIDIA's images have a newer CUDA driver for older kernel modules, which their entrypoint would switch on.
Source: NVIDIA, CUDA Compatibility, "Forward Compatibility"."""


def _command(container: Container) -> tuple[Word, ...]:
    """The command of a container, behind a shell that sets what can't be in an argument list or in an engine's
    metadata: further variables, and secrets from their files."""
    first, files = "", []
    if container.exports:
        first += '. "$1" && shift || exit 1; '
        files.append(container.exports)
    if container.secrets:
        first += "ulimit -S -c 0; "  # a core dump would keep the values
    for name in container.secrets:
        first += f'{name}=$(cat "$1") && export {name} || exit 1; shift; '
        files.append(f"{SECRETS}/{name}")
    if container.forward_compatibility:
        path = f"LD_LIBRARY_PATH={COMPATIBILITY}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
        first += f'[ ! -d {COMPATIBILITY} ] || export "{path}"; '
    return ("/bin/sh", "-c", f'{first}exec "$@"', "sh", *files, *container.argv) if first else container.argv
