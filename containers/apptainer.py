"""Apptainer, and Singularity before it was called that."""

from __future__ import annotations

import re

from launcher.containers.description import Container, Mount
from launcher.containers.devices import visibility
from launcher.containers.engines import mount_fields
from launcher.containers.runtime import Runtime, Wrapped, limited
from launcher.containers.words import EnvArg, Word

# The first versions with --no-eval. Earlier ones evaluate every value in a shell inside the container.
_NO_EVAL = {"apptainer": (1, 1), "singularity": (3, 10)}
PLAIN_PATH = re.compile(r'[^:,\\"]+')
"""A path that `--bind` takes unquoted; others need `--mount`."""


def wrap(container: Container, runtime: Runtime) -> Wrapped:
    """`apptainer exec` of a settled container.

    Values travel as APPTAINERENV_NAME in the client's environment: `--env` would split them at commas.
    """
    devices = visibility(container.devices, runtime.kind)
    prefix = "SINGULARITYENV_" if runtime.product == "singularity" else "APPTAINERENV_"
    values: dict[str, Word] = {**devices.environment, **container.environment}
    values |= {name: EnvArg(name) for name in (*devices.passed, *container.passed)}
    words: list[Word] = [*runtime.command, "exec", "--cleanenv", *(["--no-eval"] if no_eval(runtime) else [])]
    # --home with --no-home sets HOME and mounts nothing; APPTAINERENV_HOME is ignored.
    words += ["--no-home", f"--home={container.home}"]
    words += ["--net", "--network=none"] if container.network == "none" else []
    words += ["--ipc"] if container.ipc == "private" else []
    words += devices.flags
    words += [_mount(mount) for mount in container.mounts]
    words += [f"--pwd={container.workdir}", container.image, *container.argv]
    return Wrapped(
        argv=limited(container.limits, tuple(words)),
        environment={f"{prefix}{name}": value for name, value in values.items()},
        folders=(container.cache, container.home),
    )


def no_eval(runtime: Runtime) -> bool:
    """Whether it has the option that keeps it from evaluating values."""
    return not runtime.version or runtime.version >= _NO_EVAL[runtime.product or "apptainer"]


def _mount(mount: Mount) -> str:
    if PLAIN_PATH.fullmatch(mount.source) and PLAIN_PATH.fullmatch(mount.target):
        return f"--bind={mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    return f"--mount={mount_fields(mount)}"
