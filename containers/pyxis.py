"""Pyxis: Slurm's plugin that starts the tasks of a step in an enroot container."""

from __future__ import annotations

import re

from launcher.containers.description import Container
from launcher.containers.devices import visibility
from launcher.containers.runtime import Runtime, Wrapped, limited
from launcher.containers.words import Word

# These would also affect srun and enroot, which start the container, so `env` sets them inside it.
_INSIDE = ("HOME", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
PLAIN_PATH = re.compile(r"[\w@%+=./-]+")
"""Pyxis writes mounts into a shell script of enroot's without quoting them."""


def wrap(container: Container, runtime: Runtime) -> Wrapped:
    """An `srun` whose tasks run in a settled container. `runtime.command` is srun with the step's own options.

    The image's environment overrides the job's, except for the names in `--container-env`.
    """
    devices = visibility(container.devices, runtime.kind)
    values: dict[str, Word] = {"HOME": container.home, **devices.environment, **container.environment}
    inside = [f"{name}={values[name]}" for name in _INSIDE if name in values]
    outside = {name: value for name, value in values.items() if name not in _INSIDE}
    names = (*outside, *devices.passed, *container.passed)
    mounts = [f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "") for mount in container.mounts]
    words: list[Word] = [
        *runtime.command,
        *(["--pty"] if container.terminal else []),
        "--export=ALL",
        "--no-container-entrypoint",
        "--no-container-mount-home",
    ]
    words += ["--no-container-remap-root", f"--container-image={container.image}"]
    words += [f"--container-workdir={container.workdir}", f"--container-mounts={','.join(mounts)}"]
    words += [f"--container-env={','.join(names)}", "/usr/bin/env", *inside, *container.argv]
    return Wrapped(
        argv=limited(container.limits, tuple(words)), environment=outside, folders=(container.cache, container.home)
    )
