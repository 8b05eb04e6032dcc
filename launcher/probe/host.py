"""This machine as `Facts`: GPUs, Python, folders, queue and container runtimes. Looks only; writes nothing but what an
image was found to hold."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amp_launcher.typed import SettingsError
from amp_launcher.world import cgroup_limits
from launcher.code import uv_environment
from launcher.code.snapshot import Code
from launcher.config import job_environment
from launcher.config.paths import expanded
from launcher.config.schema import OWN_FOLDER
from launcher.errors import Unavailable, UsageError
from launcher.probe import gpu_probing, pythons, torch_build
from launcher.probe.facts import GPU_VARIABLES, ContainerFacts, Facts
from launcher.probe.questions import Questions
from launcher.runs import ownership

PYTHON = "python3"
"""An image's, unless `python` names another."""
# Where an engine listens and how Apptainer works here. None of them holds a secret.
CLIENT_VARIABLES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "XDG_RUNTIME_DIR"),
    *("APPTAINER_USERNS", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR"),
)
LOGIND = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")
LINGERING = "/var/lib/systemd/linger"
_KILLING = re.compile(r"^\s*KillUserProcesses\s*=\s*(\S+)", re.MULTILINE)


def facts_of(asked: Questions) -> Facts:
    """The facts of this machine, without the code."""
    contained = asked.container != "none"
    run_root = expanded(asked.run_root).absolute()
    python = asked.python or PYTHON if contained else pythons.resolve(asked.python)
    problem = "" if contained else pythons.problem(asked.python)
    uv, is_made = "", True
    if asked.uv:
        place, uv = (
            uv_environment.place(run_root, os.geteuid() if asked.shared else None),
            uv_environment.name_of(asked.uv),
        )
        python, is_made = str(uv_environment.python_of(place, uv)), uv_environment.is_ready(place, uv)
        problem = "" if is_made else uv_environment.lacking()
    searched = job_environment.search_path(os.environ, os.getcwd(), queued=asked.slurm, contained=contained)
    version, packages = ("", {}) if contained or not is_made else pythons.look_into(python, searched)
    gpus, gpu_problem = gpu_probing.listed()
    if not asked.slurm:
        gpus = gpu_probing.with_holders(gpus)
    slurm = None
    if asked.slurm:
        from launcher.probe import slurm_probing

        slurm = slurm_probing.probe()
    named = {*asked.folders, *asked.inputs, *(folder for folder in asked.workdirs if folder != OWN_FOLDER)}
    return Facts(
        host=os.uname().nodename,
        user=_user(),
        uid=os.geteuid(),
        home=str(expanded("~")),
        cwd=os.getcwd(),
        system=os.uname().sysname,
        cpus=cgroup_limits.cpus(),
        python=python,
        python_version=version,
        packages=packages,
        python_problem=problem,
        uv=uv,
        uv_is_made=is_made,
        torch_build=torch_build.read(python) if gpus and "torch" in packages and not asked.slurm else None,
        gpus=gpus,
        gpu_problem=gpu_problem,
        gpu_variables={name: os.environ[name] for name in GPU_VARIABLES if name in os.environ},
        run_root=str(run_root),
        run_root_problem=_run_root_problem(run_root, asked.shared),
        run_root_filesystem=_filesystem(run_root),
        folders={name: tuple(sorted(os.listdir(expanded(name)))) for name in asked.folders if expanded(name).is_dir()},
        file_sizes=dict(_sizes(asked.data_files)),
        programs=dict(_programs(asked.programs)),
        missing=tuple(sorted(_missing(named, asked.mounts))),
        real_paths=dict(_real_paths(asked.inputs)),
        environment=job_environment.standard(os.environ),
        code=Code(digest="", root=""),
        slurm=slurm,
        ends_at_logout=ends_at_logout(_user()),
        containers=_containers(asked) if contained else None,
    )


def _sizes(named: Iterable[str]) -> Iterable[tuple[str, int | None]]:
    """Of files that are there: bytes, None for one that can't be read."""
    for name in named:
        path = expanded(name)
        try:
            status = path.stat()
        except FileNotFoundError:
            if path.is_symlink():  # to what is not there
                yield name, None
        except OSError:
            yield name, None
        else:
            yield name, status.st_size if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK) else None


def _programs(named: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The absolute paths of programs that are there: a bare name is looked for on the PATH."""
    for name in named:
        path = shutil.which(os.path.join(Path.cwd(), expanded(name)) if "/" in name else name)
        if path is not None:
            yield name, os.path.abspath(path)


def _missing(named: Iterable[str], sources: Iterable[str]) -> Iterable[str]:
    """Missing paths: folders and inputs as named, mounts as absolute paths."""
    yield from (name for name in named if not expanded(name).exists())
    for source in sources:
        path = Path(os.path.normpath(Path.cwd() / expanded(source)))
        if not path.exists():
            yield str(path)


def _real_paths(named: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in named:
        path = os.path.normpath(Path.cwd() / expanded(name))
        if (real := os.path.realpath(path)) != path:
            yield path, real


def _user() -> str:
    """The user's name, or the uid where it has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


def _containers(asked: Questions) -> ContainerFacts:
    """The runtimes of this host, and its copy of the image. Raises `UsageError` for an invalid image."""
    from launcher.containers import find, programs, pull, references
    from launcher.containers.runtime import ALIASES, Runtime

    kind: Any = ALIASES.get(asked.container, asked.container)
    runtimes = find.installed(programs.output)
    runtime = runtimes.get(kind, Runtime(kind=kind))
    name, image, wanted = "", find.LocalImage(name="", present=False), ""
    if asked.image is not None:
        try:
            named = references.resolve(asked.image)
            if named.path:
                named = dataclasses.replace(named, path=os.path.normpath(Path.cwd() / expanded(named.path)))
            stored = pull.stored(named, runtime, expanded(asked.cache))
            if asked.pull and not stored:
                stored, wanted = pull.to_come(named, runtime, expanded(asked.cache), find.architecture(programs.output))
            name = references.local_name(named, runtime.kind, stored)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        except pull.PullError as error:
            raise Unavailable(str(error)) from None
        image = find.find_image(name, runtime, programs.output)
    return ContainerFacts(
        runtimes=runtimes,
        architecture=find.architecture(programs.output),
        image=name,
        image_present=image.present,
        image_pull="" if image.present else wanted,
        image_identity=image.identity,
        image_architecture=image.architecture,
        image_cuda=image.cuda,
        environment={name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ},
        uid=os.getuid(),
        gid=os.getgid(),
        groups=tuple(os.getgroups()),
    )


def _filesystem(folder: Path) -> str:
    """Type of the file system of a folder that may not exist yet; empty if /proc does not show it."""
    best = ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, target, kind, *_ = line.split(" ")
        target = target.replace("\\040", " ")
        inside = target == "/" or folder == Path(target) or Path(target) in folder.parents
        if inside and len(target) >= len(best[0]):
            best = (target, kind)
    return best[1]


def existing(path: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    while not os.path.exists(path):  # Path.exists raises without permission
        path = path.parent
    return path


def _run_root_problem(run_root: Path, shared: bool) -> str:
    """Why run folders can't be made there; changes nothing."""
    place = existing(run_root)
    if not place.is_dir():
        return f"{place} is not a folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not writable for {_user()}"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a read-only file system"
    return ownership.root_problem(str(run_root), shared=shared) if place == run_root else ""


def ends_at_logout(user: str, configuration: Iterable[str] = LOGIND, lingering: str = LINGERING) -> bool:
    """Whether this user's runs would end with the connection: systemd-logind kills the processes of a session, and the
    user may not linger. See logind.conf(5), KillUserProcesses; its default is no."""
    setting = "no"
    for path in map(Path, configuration):
        files = sorted(path.glob("*.conf")) if path.is_dir() else [path]
        for file in files:
            try:
                values = _KILLING.findall(file.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
            setting = values[-1] if values else setting
    return setting.lower() in ("yes", "true", "on", "1") and not Path(lingering, user).exists()
