"""All the looking, once, before planning: this machine's GPUs, Python, folders and code as `Facts`."""

from __future__ import annotations

import dataclasses
import getpass
import os
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recipes
from launcher import admit
from launcher.admit import Refused
from launcher.code import snapshot, user_code
from launcher.code.snapshot import Code
from launcher.config import job_environment
from launcher.config.paths import expanded
from launcher.config.schema import OWN_FOLDER, SlurmCluster
from launcher.config.spec import JobSpec
from launcher.errors import Unavailable, UsageError
from launcher.probe import gpu_probing, pythons
from launcher.probe.facts import ContainerFacts, Facts, Script, SlurmFacts
from launcher.probe.logind import ends_at_logout
from launcher.runs import address as addresses
from launcher.runs import ownership
from recipes import cgroup_limits, script
from recipes.recipe import NAMES
from recipes.typed import SettingsError, build, plain

PROFILERS = ("nsys", "ncu", "dlprof")
"""NVIDIA's profilers, which start the trainer themselves."""
# Where an engine listens and how Apptainer works here. None of them holds a secret.
CLIENT_VARIABLES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "XDG_RUNTIME_DIR"),
    *("APPTAINER_USERNS", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR"),
)


def probe(specs: Sequence[JobSpec]) -> Facts:
    """What the host of the jobs has, what they name on it, and the code that they take from here. Writes nothing.

    Raises `LauncherError`.
    """
    secrets = {path for spec in specs for path in spec.launch.secrets.values() if path is not None}
    of_shell = {name for spec in specs for name, path in spec.launch.secrets.items() if path is None}
    address = addresses.of(specs[0].launch.cluster)
    if address is None:
        there = look(questions(specs))
    else:
        from launcher.ssh.host import connect

        there = connect(address).ask("probe", _admitted_facts, asked=plain(questions(specs)))
    return dataclasses.replace(
        there,
        missing=tuple(sorted({*there.missing, *(each for each in secrets if not expanded(each).exists())})),
        open_secrets=tuple(
            sorted(each for each in secrets if expanded(each).exists() and expanded(each).stat().st_mode & 0o077)
        ),
        bad_secrets={
            **{
                each: why
                for each in secrets
                if expanded(each).exists() and (why := job_environment.file_problem(expanded(each)))
            },
            **{f"${name}": why for name in of_shell if (why := _problem_of_variable(name))},
        },
        shell=job_environment.of_shell(os.environ),
        profilers=tuple(each for each in PROFILERS if shutil.which(each)),
        scripts=_scripts(specs),
        code=snapshot.describe(code_root().parent, code_files(specs)),
    )


def _admitted_facts(answer: Any) -> Facts:
    """What another host says of itself. Raises `Refused`."""
    try:
        return build(Facts, admit.group(admit.cleaned(answer), "facts"), prefix="facts.")
    except (SettingsError, TypeError) as error:  # the latter where facts are missing
        raise Refused(str(error)) from None


def probe_each(specs: Sequence[JobSpec]) -> list[Facts]:
    """What is known for each of the jobs, which go to one host and run one snapshot of the code: they may differ in
    what they run in."""
    whole = probe(specs)
    found = {_runs_in(specs[0]): whole}
    for spec in specs:
        if _runs_in(spec) not in found:
            own = probe([each for each in specs if _runs_in(each) == _runs_in(spec)])
            found[_runs_in(spec)] = dataclasses.replace(own, code=whole.code)
    return [found[_runs_in(spec)] for spec in specs]


def _runs_in(spec: JobSpec) -> tuple[Any, ...]:
    launch, container = spec.launch, spec.launch.container
    return launch.python, launch.image, container.kind, container.cache, container.pull


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """What has to be found out about the host that jobs go to."""

    slurm: bool
    container: str
    """Kind of it, as asked for."""
    image: str | None
    cache: str
    """Folder of fetched images."""
    pull: bool
    """Whether an image that isn't there is to be fetched."""
    python: str | None
    bare: bool
    """Whether all of them are users' scripts that start with nothing around them."""
    run_root: str
    shared: bool
    """Whether a group is to read the runs."""
    folders: tuple[str, ...]
    """Of data."""
    workdirs: tuple[str, ...]
    mounts: tuple[str, ...]
    """Their sources."""


def questions(specs: Sequence[JobSpec]) -> Questions:
    first = specs[0].launch
    scripts = [spec for spec in specs if _named_scripts([spec])]
    return Questions(
        slurm=isinstance(first.cluster, SlurmCluster),
        container=first.container.kind,
        image=first.image,
        cache=first.container.cache,
        pull=first.container.pull,
        python=first.python,
        bare=all(spec.recipe.name == "script" and spec.training.train.bare for spec in specs),
        run_root=first.run_root,
        shared=first.share == "group",
        folders=tuple(sorted({spec.training.data.dir for spec in specs if spec.training.data.dir})),
        workdirs=tuple(sorted({each for spec in scripts if (each := spec.launch.workdir) is not None})),
        mounts=tuple(sorted({each.split(":")[0] for spec in specs for each in spec.launch.mounts})),
    )


def look(asked: Questions) -> Facts:
    """What this machine has, and what is named on it. Of the code nothing is said."""
    contained = asked.container != "none"
    python = asked.python or "python3" if contained else pythons.resolve(asked.python)
    version, packages = ("", {}) if contained else pythons.look_into(python)
    gpus, gpu_problem = gpu_probing.listed()
    if not asked.slurm:
        gpus = gpu_probing.with_holders(gpus)
    run_root = expanded(asked.run_root).absolute()
    named = {*asked.folders, *asked.workdirs} - {OWN_FOLDER}
    return Facts(
        host=platform.node(),
        user=_user(),
        uid=os.geteuid(),
        home=str(expanded("~")),
        cwd=os.getcwd(),
        system=platform.system(),
        cpus=cgroup_limits.cpus(),
        python=python,
        python_version=version,
        packages=packages,
        gpus=gpus,
        gpu_problem=gpu_problem,
        run_root=str(run_root),
        run_root_problem=_run_root_problem(run_root, asked.shared),
        run_root_filesystem=_filesystem(run_root),
        folders={each: tuple(sorted(os.listdir(expanded(each)))) for each in asked.folders if expanded(each).is_dir()},
        missing=tuple(sorted(_missing(named, asked.mounts))),
        environment=job_environment.standard(os.environ),
        code=Code(digest="", root="", files=0, bytes=0),
        slurm=_slurm() if asked.slurm else None,
        ends_at_logout=ends_at_logout(_user()),
        containers=_containers(asked) if contained else None,
    )


def code_root() -> Path:
    """The package of the training side, wherever it is installed."""
    return Path(recipes.__path__[0]).absolute()


def code_files(specs: Sequence[JobSpec] = ()) -> Mapping[str, Path]:
    """The files that the jobs run: those of the training side, and those of the users' own scripts."""
    files = snapshot.collect(code_root())
    if any(spec.recipe.name not in NAMES for spec in specs):
        for folder in list(recipes.__path__)[1:]:
            files = {**snapshot.collect(Path(folder)), **files}  # under the same names; ours stay what they are
    for named in _named_scripts(specs):
        files.update(user_code.collect(user_code.absolute(named), _included(specs, named)).files)
    return files


def _included(specs: Sequence[JobSpec], script: str) -> list[str]:
    """Patterns of what goes along with a script though git ignores it, for any of the jobs: they share a snapshot."""
    return sorted({pattern for spec in specs if spec.launch.script == script for pattern in spec.launch.include})


def _named_scripts(specs: Sequence[JobSpec]) -> list[str]:
    """The scripts of the jobs that are to be found here, each once."""
    named = (spec.launch.script for spec in specs)
    return list(dict.fromkeys(each for each in named if each and not script.in_image(each)))


def _scripts(specs: Sequence[JobSpec]) -> dict[str, Script]:
    found = {}
    bare = all(spec.training.train.bare for spec in specs if spec.launch.script)
    for named in _named_scripts(specs):
        path = user_code.absolute(named)
        user_code.check(named, path, alone=bare)
        text = path.read_text(encoding="utf-8", errors="replace")
        collected = user_code.collect(path, _included(specs, named))
        found[named] = Script(
            path=str(path),
            name=user_code.name_in_snapshot(path),
            source=script.read(text),
            root=str(collected.root),
            credentials=collected.credentials,
            lacking=user_code.left_out_imports(path, collected),
        )
    return found


def _missing(named: Iterable[str], sources: Iterable[str]) -> Iterable[str]:
    """Paths that are not there: as they were named, and mounts as the absolute paths that they will be."""
    yield from (each for each in named if not expanded(each).exists())
    for each in sources:
        source = Path(os.path.normpath(Path.cwd() / expanded(each)))
        if not source.exists():
            yield str(source)


def _problem_of_variable(name: str) -> str:
    if name not in os.environ:
        return "is not set in this shell"
    return job_environment.problem(os.environb[name.encode()])


def _user() -> str:
    """Who this is; the number alone where the machine has no name for it, as containers and clusters may."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


def _slurm() -> SlurmFacts:
    from launcher.probe.slurm_probing import probe as probe_slurm

    return probe_slurm()


def _containers(asked: Questions) -> ContainerFacts:
    """Runtimes of this host, and its copy of the image. Raises `UsageError` for what can't be an image."""
    from containers import find, pull, references
    from containers.runtime import ALIASES, Runtime

    kind: Any = ALIASES.get(asked.container, asked.container)
    runtimes = find.installed(find.ask_here)
    runtime = runtimes.get(kind, Runtime(kind=kind))
    name, image, wanted = "", find.LocalImage(name="", present=False), ""
    if asked.image is not None:
        try:
            named = references.resolve(asked.image)
            if named.path:
                named = dataclasses.replace(named, path=os.path.normpath(Path.cwd() / expanded(named.path)))
            stored = pull.stored(named, runtime, expanded(asked.cache))
            if asked.pull and not stored:
                stored, wanted = pull.to_come(named, runtime, expanded(asked.cache), find.architecture(find.ask_here))
            name = references.local_name(named, runtime.kind, stored)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        except pull.PullError as error:
            raise Unavailable(str(error)) from None
        image = find.find_image(name, runtime, find.ask_here)
    return ContainerFacts(
        runtimes=runtimes,
        architecture=find.architecture(find.ask_here),
        image=name,
        image_present=image.present,
        image_pull="" if image.present else wanted,
        image_architecture=image.architecture,
        image_cuda=image.cuda,
        environment={name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ},
        uid=os.getuid(),
        gid=os.getgid(),
        groups=tuple(os.getgroups()),
    )


def _filesystem(folder: Path) -> str:
    """Type of the file system that holds the folder, or will hold it; empty where /proc doesn't say."""
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


def _run_root_problem(run_root: Path, shared: bool) -> str:
    """Why run folders can't be made there, looking only."""
    place = run_root
    while not os.path.exists(place):  # Path.exists raises for what may not be looked at
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not writable for {_user()}"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a read-only file system"
    return ownership.root_problem(str(run_root), shared=shared) if place == run_root else ""
