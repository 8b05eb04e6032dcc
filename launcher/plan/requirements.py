"""What a job needs of its host besides GPUs: data files, secrets, a Python with its framework. Pure."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Collection, Sequence
from typing import get_args

from amp_launcher.loop.require_framework import package_of
from amp_launcher.precision.gemm import HALF, LIBRARY, install, library_problem
from amp_launcher.precision.levels import Framework
from amp_launcher.precision.support import sharding_problem
from amp_launcher.recipe import DataLayout
from amp_launcher.typed import SettingsError
from launcher.config.spec import JobSpec
from launcher.probe.facts import Facts, Gpu
from launcher.probe.questions import data_files

PYTHON_FLOOR = (3, 10)
"""The oldest Python that our trainers, and what is applied around scripts, run on."""
_REMOTE = "a job on another host (cluster=ssh, or cluster=slurm with cluster.login) needs none here; "


def check_data(spec: JobSpec, facts: Facts) -> None:
    data = spec.training.data
    if not spec.recipe.data:
        return
    layout: DataLayout = spec.recipe.data[data.name]
    if data.download and not layout.download:
        if layout.source:
            raise SettingsError(
                f"data.download=true: data={data.name} can't be downloaded without its owner's permission; get it from "
                f"{layout.source}, and name its folder with data.dir",
            )
        raise SettingsError(f"data.download=true: data={data.name} needs no files; leave it out")
    if not layout.files:
        return
    wanted = ", or ".join(" and ".join(names) for names in layout.files)
    fetch = "; data.download=true fetches them" if layout.download else ""
    help = f"; data={data.name} is {layout.help}" if layout.help else ""
    if data.dir is None:
        free = [name for name, other in spec.recipe.data.items() if not other.files]
        instead = f"; data={' or data='.join(free)} needs no files" if free else ""
        raise SettingsError(f"data={data.name} needs data.dir, the folder with {wanted}{fetch}{instead}", "data.dir")
    if data.download:
        return
    there = facts.folders.get(data.dir)
    if there is None:
        raise SettingsError(f"data.dir={data.dir} is not a folder; it should hold {wanted}{fetch}{help}")
    lacking = [_lacking(layout, names, there) for names in layout.files]
    if all(lacking):
        what = f"lacks {', '.join(lacking[0])}" if len(lacking) == 1 else f"holds none of {wanted}"
        compressed = " (or the same with .gz)" if layout.gzip else ""
        raise SettingsError(f"data.dir={data.dir} {what}{compressed}{fetch}{help}")
    if spec.recipe.check_files is not None:
        sizes = {path: facts.file_sizes[path] for path in data_files(spec) if path in facts.file_sizes}
        spec.recipe.check_files(spec.training, sizes)


def _lacking(layout: DataLayout, names: tuple[str, ...], there: Collection[str]) -> list[str]:
    return [name for name in names if not fnmatch.filter(there, name) and not (layout.gzip and f"{name}.gz" in there)]


def check_secrets(spec: JobSpec, facts: Facts) -> None:
    for name, path in spec.launch.secrets.items():
        label = f"${name}" if path is None else path
        if label in facts.bad_secrets:
            given = f"secrets.{name}={path}" if path else f"secrets.{name}: {name}"
            raise SettingsError(f"{given} {facts.bad_secrets[label]}", f"secrets.{name}")
        if path in facts.missing:
            raise SettingsError(f"secrets.{name}={path}: there is no such file", f"secrets.{name}")
        if path in facts.open_secrets:
            raise SettingsError(f"secrets.{name}={path} can be read by others; run chmod 600 {path}", f"secrets.{name}")


def check_python(spec: JobSpec, facts: Facts) -> None:
    framework = spec.training.framework
    if spec.launch.container.kind != "none" or (spec.recipe.name == "script" and spec.training.train.command):
        return
    if facts.python_problem:
        raise SettingsError(facts.python_problem, "python")
    if not facts.python_version and facts.uv_is_made:
        raise SettingsError(f"python={facts.python} can't be run on {facts.host}; name another with python=")
    version = tuple(int(part) for part in facts.python_version.split(".")[:2] if part.isdecimal()) or PYTHON_FLOOR
    bare = spec.recipe.name == "script" and spec.training.train.bare
    if version < PYTHON_FLOOR and not bare:
        raise SettingsError(
            f"python={facts.python} on {facts.host} is {facts.python_version}, and trainers need "
            f"{'.'.join(map(str, PYTHON_FLOOR))}; name a newer one with python=, or use a container",
        )
    if framework not in (*facts.packages, "none") and not bare and not is_loaded(spec, facts):
        others = [f"framework={name}" for name in get_args(Framework) if name in facts.packages]
        there = f"; it has {' and '.join(others)}" if others else ""
        remote = _REMOTE if spec.launch.cluster.kind == "local" else ""
        raise SettingsError(_without(framework, facts, there, remote), "framework")
    setup = spec.launch.cluster.setup  # what it loads isn't known
    if spec.training.parallel == "fsdp" and not setup and (problem := sharding_problem(facts.packages[framework])):
        raise SettingsError(f"{problem}, or name another Python with python=", "parallel")


def is_loaded(spec: JobSpec, facts: Facts) -> bool:
    """Whether only what `cluster.setup` loads may have the framework that this host's Python lacks."""
    lacking = facts.python_version and spec.training.framework not in (*facts.packages, "none")
    return bool(spec.launch.cluster.setup and lacking) and spec.launch.container.kind == "none"


def _without(framework: str, facts: Facts, there: str, remote: str) -> str:
    """The refusal of a framework that a Python lacks, with the command that makes an environment with it."""
    package = package_of(framework)
    if facts.uv:
        adds = f"cd {posixpath.dirname(facts.uv_lock)} && uv add {package}"
        return f"framework={framework} is not in {facts.uv_lock}{there}; this adds it:\n  {adds}"
    return (
        f"framework={framework} is not installed for {facts.python} on {facts.host}{there}; {remote}"
        f"python=uv takes the environment of a uv.lock, python=venv:~/{framework} the one that these commands make:\n"
        f"  python3 -m venv ~/{framework} && ~/{framework}/bin/pip install {package}"
    )


def notify(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    """The argument list of `notify`, empty without it. Raises `SettingsError` for a program that isn't there."""
    command = spec.launch.notify
    if command is None:
        return ()
    name, *arguments = shlex.split(command)
    if name not in facts.programs:
        raise SettingsError(
            f"notify={command}: {facts.host} has no program {name} that you can run; say the path of one that it has",
        )
    return (facts.programs[name], *arguments)


def check_gemm(spec: JobSpec, facts: Facts) -> None:
    """Refuse a number format whose library this Python is known to lack. What an image has, and what `cluster.setup`
    loads, isn't known."""
    gemm = spec.training.amp.gemm
    if gemm == HALF or spec.launch.container.kind != "none" or spec.launch.cluster.setup:
        return
    if problem := library_problem(gemm, facts.packages.get(LIBRARY, "")):
        raise SettingsError(
            f"{problem} for {facts.python} on {facts.host}: {install(gemm)}, or name another Python with python=",
            "amp.gemm",
        )


def check_build(spec: JobSpec, facts: Facts, gpus: Sequence[Gpu]) -> None:
    """Refuse a framework's build that can't use these GPUs of this host. What `cluster.setup` loads isn't known."""
    framework = spec.training.framework
    problem, remedy = build_problem(framework, facts, gpus)
    if problem and spec.launch.container.kind == "none" and not spec.launch.cluster.setup:
        raise SettingsError(f"framework={framework}: {problem}; {remedy}")


def build_problem(framework: str, facts: Facts, gpus: Sequence[Gpu]) -> tuple[str, str]:
    """Why this Python's build of a framework can't use the GPUs, and the remedy; empty where it can. As torch itself
    tells, or its version."""
    if not gpus:
        return "", ""
    from launcher.containers.catalogue import Needs, cuda_problem, least_driver, parse

    version = facts.packages.get(framework, "")
    build = facts.torch_build if framework == "torch" else None
    suffix = re.search(r"\+cu(\d\d)(\d)", version)
    cuda = build.cuda if build else f"{suffix[1]}.{suffix[2]}" if suffix else ""
    if version.endswith("+cpu") or (build and not cuda):
        problem = f"{framework} {version} is a build without CUDA, and there are GPUs"
        other = "paddlepaddle-gpu instead of paddlepaddle" if framework == "paddle" else f"{framework}'s build for CUDA"
        return problem, f"install {other}, or say device=cpu"
    if not cuda:
        return "", ""
    for gpu in gpus:
        capability = gpu.compute_capability
        if capability is None:
            continue
        lacks = cuda_problem(cuda, Needs(capability=capability))
        if build and build.architectures:
            has = any(_runs(name, capability) for name in build.architectures)
            lacks = "" if has else f"it has code for {', '.join(build.architectures)}"
        if lacks:
            problem = f"{framework} {version} for CUDA {cuda} does not run on {gpu.name} (compute capability "
            return f"{problem}{gpu.capability}): {lacks}", "install a build for another CUDA, or another version"
    needed, driver = least_driver(parse(cuda)), gpus[0].driver
    if needed is None or not driver[:1].isdecimal() or parse(driver) >= needed:
        return "", ""
    problem = f"{framework} {version} is for CUDA {cuda}, which needs driver {needed[0]}.{needed[1]}"
    return f"{problem}, and this host has {driver}", "install a newer driver, or a build for an older CUDA"


def _runs(name: str, capability: tuple[int, int]) -> bool:
    """Whether code of that name runs on a GPU: binaries on later ones of their major number, PTX on all later ones, and
    code for one architecture alone on that (NVIDIA, CUDA C++ Programming Guide, "Application Compatibility")."""
    code = re.fullmatch(r"(sm|compute)_([0-9]{1,3})([0-9])([a-z]?)", name)
    if code is None:
        return False
    own = (int(code[2]), int(code[3]))
    if code[4] == "a":
        return capability == own
    return capability >= own and (code[1] == "compute" or capability[0] == own[0])
