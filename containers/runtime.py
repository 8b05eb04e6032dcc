"""A container runtime of one host, and a job wrapped for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from launcher.containers.words import Word

Kind = Literal["none", "docker", "podman", "apptainer", "pyxis"]
KINDS: tuple[Kind, ...] = ("none", "docker", "podman", "apptainer", "pyxis")
ALIASES: Mapping[str, Kind] = {"singularity": "apptainer"}
"""Older names of the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A container runtime of a host."""

    kind: Kind
    command: tuple[str, ...] = ()
    """Its client: `docker`, `/usr/bin/singularity`, or for pyxis `srun` with the step's options."""
    product: str = ""
    """`apptainer` or `singularity`, where the kind has both."""
    version: tuple[int, ...] = ()
    rootless: bool = False
    """The engine's root is the user who started it."""
    problem: str = ""
    """Why it can't be used although its client is installed."""
    gpu_problem: str = ""
    """Why it can't give GPUs to a container."""


GRACE = "LAUNCHER_GRACE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapped:
    """The commands of a job in its container."""

    argv: tuple[Word, ...]
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables for the process that starts it, in addition to inherited ones."""
    folders: tuple[str, ...] = ()
    """Private folders of the host to make first."""
    remove: tuple[Word, ...] = ()
    """Command that kills and removes the container. Empty where the container is this process's own child."""
    outcome: tuple[Word, ...] = ()
    """Command that waits for the container and prints its exit code, where the client's own is unreliable. The
    container then stays until `remove`."""
    stop: tuple[Word, ...] = ()
    """Command that asks the container to end, and kills it after `GRACE` seconds, an environment variable."""


def limited(limits: Mapping[str, int], argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """A command that runs `argv` under these limits, for runtimes whose containers inherit them."""
    if not limits:
        return argv
    words = [f"--{name}={'unlimited' if value == -1 else value}" for name, value in limits.items()]
    return ("prlimit", *words, *argv)
