"""Checks of a container before anything is queued. Pure: facts are arguments.

Every function raises `SettingsError` with the key that a person set.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping

from amp_launcher.typed import SettingsError, not_a_choice, refuse_control_characters
from launcher.containers import apptainer, pyxis
from launcher.containers.description import SECRETS, Container, Mount, settle
from launcher.containers.runtime import ALIASES, KINDS, Runtime
from launcher.containers.variables import JOB_PREFIXES, OWNED, RUNTIME_PREFIXES, SHELL

_SYSTEM = ("/", "/proc", "/sys", "/dev")


def check_names(names: Iterable[str], key: str) -> None:
    """Refuse names of `env` and `secrets` that no job in a container can have."""
    for name in names:
        if name in (*OWNED, *SHELL) or name.startswith((*JOB_PREFIXES, *RUNTIME_PREFIXES)):
            instead = "; say visible_gpus=[...]" if "VISIBLE_DEVICES" in name else ""
            raise SettingsError(
                f"{key}.{name}: {name} is set by the launcher or the runtime itself{instead}", f"{key}.{name}"
            )


def choose(kind: str, installed: Mapping[str, Runtime]) -> Runtime:
    """The runtime of that kind among those of the host, by kind. `singularity` is the older name of apptainer."""
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS:
        raise SettingsError(not_a_choice("container", kind, (*KINDS, *ALIASES)), "container.kind")
    if kind == "none":
        return Runtime(kind="none")
    if kind not in installed:
        there = ", ".join(["none", *installed])
        raise SettingsError(f"container={kind}: it is not installed on this host, which has {there}", "container.kind")
    if installed[kind].problem:
        raise SettingsError(f"container={kind}: {installed[kind].problem}", "container.kind")
    return installed[kind]


def parse_mount(text: str) -> Mount:
    """A mount from `SOURCE:TARGET[:ro]`. The source may be relative."""
    parts = text.split(":")
    read_only = parts[-1] == "ro"
    if parts[-1] in ("ro", "rw"):
        parts.pop()
    if len(parts) != 2 or not all(parts):
        raise SettingsError(f"mounts={text} should be SOURCE:TARGET or SOURCE:TARGET:ro, with no other ':'")
    return Mount(source=parts[0], target=parts[1], read_only=read_only)


def check_container(container: Container, runtime: Runtime, missing: Collection[str] = ()) -> None:
    """Refuse a container that this runtime can't run exactly as described. `missing` are paths that the host lacks."""
    _check_texts(container)
    _check_mounts(container, missing)
    if runtime.gpu_problem and container.devices:
        raise SettingsError(f"container={runtime.kind} with GPUs: {runtime.gpu_problem}", "container.kind")
    {"docker": _check_engine, "podman": _check_engine, "apptainer": _check_apptainer, "pyxis": _check_pyxis}[
        runtime.kind
    ](settle(container), runtime)


def _check_texts(container: Container) -> None:
    texts = {"image": container.image, "workdir": container.workdir, "cache": container.cache}
    texts |= {f"env.{name}": value for name, value in container.environment.items()}
    texts |= {f"secrets.{name}": value for name, value in container.secrets.items()}
    for index, mount in enumerate(container.mounts):
        texts |= {f"mounts[{index}]": f"{mount.source}:{mount.target}"}
    for index, word in enumerate(container.argv):
        texts |= {f"argv[{index}]": word} if isinstance(word, str) else {}
    for key, text in texts.items():
        refuse_control_characters(key, text)
    first = container.argv[0] if container.argv else ""
    if isinstance(first, str) and (not first or first.startswith("-")):
        raise SettingsError(f"python={first} is not the name of a program")
    given = [*container.environment, *container.passed, *container.secrets]
    for name in given:
        if given.count(name) > 1:
            raise SettingsError(f"env.{name}: {name} is set by the launcher itself", f"env.{name}")


def _check_mounts(container: Container, missing: Collection[str]) -> None:
    targets: dict[str, str] = {posixpath.normpath(container.cache): container.cache}
    for mount in container.mounts:
        shown = f"{mount.source}:{mount.target}"
        if not mount.target.startswith("/"):
            raise SettingsError(f"mounts={shown}: {mount.target} should be absolute, as /{mount.target}")
        target = posixpath.normpath(mount.target)
        if target in _SYSTEM or target.startswith(("/proc/", "/sys/", f"{SECRETS}/")) or target == SECRETS:
            raise SettingsError(f"mounts={shown}: {target} belongs to the container itself")
        if target in targets:
            raise SettingsError(f"mounts={shown}: {target} already holds {targets[target]}")
        targets[target] = mount.source
        if mount.source in missing:
            raise SettingsError(f"mounts={shown}: {mount.source} is not there")


def _check_engine(container: Container, runtime: Runtime) -> None:
    if container.shm_bytes and container.ipc == "host":
        raise SettingsError("container.shm needs container.ipc=private; the host's /dev/shm has its own size", "shm")


def _check_apptainer(container: Container, runtime: Runtime) -> None:
    if container.shm_bytes:
        raise SettingsError(f"container.shm: {runtime.kind} shares the host's /dev/shm and its size", "shm")
    if ":" in container.home:
        raise SettingsError(f"run_root={container.cache}: {runtime.kind} takes no ':' there")
    if apptainer.no_eval(runtime):
        return
    version = ".".join(map(str, runtime.version))
    for name, value in container.environment.items():
        if any(character in value for character in '$`\\"'):
            raise SettingsError(
                f'env.{name}: {runtime.product} {version} runs $, `, \\ and " of a value in a shell; '
                "a newer one, or a file that holds the value, would do",
                f"env.{name}",
            )
    for mount in container.mounts:
        for path in (mount.source, mount.target):
            if not apptainer.PLAIN_PATH.fullmatch(path):
                raise SettingsError(f"mounts={path}: {runtime.product} {version} can't mount such a path")


def _check_pyxis(container: Container, runtime: Runtime) -> None:
    for what, given in (("shm", container.shm_bytes), ("ipc", container.ipc == "private")):
        if given:
            raise SettingsError(f"container.{what}: pyxis shares the host's /dev/shm and its size", what)
    if container.network == "none":
        raise SettingsError("container.network=none: pyxis shares the host's network", "network")
    if container.devices is not None and container.devices not in ((), "job"):
        raise SettingsError("visible_gpus with container=pyxis: Slurm chooses the devices; say gpus=", "visible_gpus")
    paths = {"workdir": container.workdir, "image": container.image.replace("#", "/", 1).replace(":", "/")}
    for mount in container.mounts:
        paths |= {f"mounts={mount.source}": mount.source, f"mounts={mount.target}": mount.target}
    for key, path in paths.items():
        if not pyxis.PLAIN_PATH.fullmatch(path):
            odd = "".join(sorted(set(re.sub(pyxis.PLAIN_PATH, "", path))))
            raise SettingsError(f"{key}: pyxis takes letters, digits and @%+=./_- in paths, not {odd!r}", key)
