"""A runtime as it is on one host, and what comes out of wrapping a job for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from containers.words import Word

Kind = Literal["none", "docker", "podman", "apptainer", "pyxis"]
KINDS: tuple[Kind, ...] = ("none", "docker", "podman", "apptainer", "pyxis")
ALIASES: Mapping[str, Kind] = {"singularity": "apptainer"}
"""Older names of the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A container runtime as it was found on a host."""

    kind: Kind
    command: tuple[str, ...] = ()
    """Words that start its client: `docker`, `/usr/bin/singularity`, or for pyxis `srun` with the step's options."""
    product: str = ""
    """Where one kind has several makers: `apptainer` or `singularity`."""
    version: tuple[int, ...] = ()
    rootless: bool = False
    """An engine whose root is the user who started it: what it writes as root is theirs."""
    problem: str = ""
    """Why it can't be used although its client is there."""
    gpu_problem: str = ""
    """Why it can't give GPUs to a container."""


GRACE = "LAUNCHER_GRACE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapped:
    """How to start a job in its container."""

    argv: tuple[Word, ...]
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables for the process that starts it, beside those it inherits."""
    folders: tuple[str, ...] = ()
    """Folders of the host to make first, for the user alone."""
    remove: tuple[Word, ...] = ()
    """Command that ends and removes the container, alive or left over. Empty where it is this process's own child."""
    outcome: tuple[Word, ...] = ()
    """Command that waits for the container and prints its exit code, where the client's own is not to be trusted. Then
    the container stays until `remove`."""
    stop: tuple[Word, ...] = ()
    """Command that asks the same container to end, and ends it after `GRACE` seconds, a variable when it is run."""


def limited(limits: Mapping[str, int], argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """A command that runs `argv` under these limits, for runtimes whose containers inherit them."""
    if not limits:
        return argv
    words = [f"--{name}={'unlimited' if value == -1 else value}" for name, value in limits.items()]
    return ("prlimit", *words, *argv)
