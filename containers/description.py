"""What a job runs in, said once for every runtime.

A `Container` means the same in each of them: these words arrive byte for byte, this environment wins over the image's,
the job starts in this folder as this user, sees these devices, and its exit code comes back.

The image's entrypoint never runs. `apptainer exec` and pyxis leave it out anyway, so running it in Docker alone would
make the same job mean two things; and what it may do (print a banner, change variables, start servers) is not in the
plan that a person reads before submitting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from containers.words import EnvArg, Word

Devices = tuple[str, ...] | Literal["job"] | None
"""GPUs by index or UUID, in the order the job numbers them; `job` is what the scheduler gave; empty is none of those
that the host has; None is a host that has no GPU at all, where nothing may be said about them."""

SECRETS = "/run/launcher"
"""Folder inside the container that secret files are mounted in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A file or folder of the host, seen in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """Whom the job runs as; the image need not know them."""

    uid: int
    gid: int
    name: str
    groups: tuple[int, ...] = ()
    """Supplementary groups, which shared data is often readable by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One job's container. Paths are absolute; sources are on the host that runs it, targets inside."""

    image: str
    """As the runtime takes it: see `references.local_name`."""
    argv: tuple[Word, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    """Variables that get their value when the job starts, from the process that starts the container."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> file of mode 0600 that holds its value."""
    exports: str = ""
    """File of mode 0600, in a mounted folder, with lines of shell that export further variables."""
    mounts: tuple[Mount, ...] = ()
    workdir: str
    devices: Devices = None
    user: User
    cache: str
    """Folder of the host for what should outlive the container: compiled kernels, downloaded packages, HOME."""
    name: str | EnvArg
    """Unique on its host: the engines' containers outlive the process that started them, and are found by it."""
    network: Literal["host", "none"] = "host"
    ipc: Literal["host", "private"] = "host"
    """Whose shared memory: data loaders and NCCL pass batches through it."""
    shm_bytes: int | None = None
    """Size of a private /dev/shm; None is the runtime's own default."""
    terminal: bool = False
    """Whether a person sits at it, whose terminal is passed on."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Resource limits by the names of prlimit (`memlock`, `stack`), soft and hard alike; -1 is unlimited."""

    @property
    def home(self) -> str:
        return f"{self.cache}/home"


# Where packages would write below HOME or /tmp what the next run could use again.
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
    """The same container with its caches, user and secrets spelled out as mounts, environment and argv."""
    caches = {name: container.cache + below for name, below in _CACHES.items()}
    who = {"USER": container.user.name, "LOGNAME": container.user.name}
    files = tuple(
        Mount(source=path, target=f"{SECRETS}/{name}", read_only=True) for name, path in container.secrets.items()
    )
    mounts = (*container.mounts, Mount(source=container.cache, target=container.cache), *files)
    return replace(
        container,
        argv=with_exports(
            with_secrets(container.argv, {name: f"{SECRETS}/{name}" for name in container.secrets}), container.exports
        ),
        environment={**_ALWAYS, **caches, **who, **container.environment},
        # A folder before what is mounted inside it: Docker sorts them so, Apptainer takes them as they come.
        mounts=tuple(sorted(mounts, key=lambda mount: mount.target.count("/"))),
        secrets={},
        exports="",
    )


def with_secrets(argv: tuple[Word, ...], files: Mapping[str, str]) -> tuple[Word, ...]:
    """A command that reads each variable from its file and then becomes `argv`.

    From the file into the variable: the text is in no argument list, and in nothing that an engine remembers.
    """
    if not files:
        return argv
    reading = "".join(f'{name}=$(cat "$1") && export {name} || exit 1; shift; ' for name in files)
    return ("/bin/sh", "-c", f'{reading}exec "$@"', "sh", *files.values(), *argv)


def with_exports(argv: tuple[Word, ...], file: str) -> tuple[Word, ...]:
    """A command that takes its variables from a file of `export` lines and then becomes `argv`."""
    if not file:
        return argv
    return ("/bin/sh", "-c", '. "$1" && shift && exec "$@"', "sh", file, *argv)
