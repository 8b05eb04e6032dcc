"""The container of a job: chosen and checked when it is planned, described when its script is written."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amp_launcher.typed import SettingsError
from launcher.config import job_environment
from launcher.config.schema import OWN_FOLDER, SlurmCluster
from launcher.config.spec import JobSpec
from launcher.containers.description import Container, Devices, Mount, User
from launcher.containers.runtime import ALIASES, Runtime
from launcher.containers.words import EnvArg, Word
from launcher.errors import Unavailable
from launcher.plan import slurm_check, user_script
from launcher.plan.model import CHECKPOINTS, ContainerPlan, Plan
from launcher.plan.requirements import PYTHON_FLOOR
from launcher.probe.facts import Facts

if TYPE_CHECKING:
    from launcher.containers.catalogue import Needs
    from launcher.containers.runtime import Wrapped

CACHE = ".cache"
"""Folder of a run root for what outlives containers: compiled kernels, downloads, the job's HOME."""
FLOOR = {"torch": (2, 4), "tensorflow": (2, 16)}
"""Oldest versions that our own trainers run on; users' own scripts may run on older ones."""
ATTEMPT, SPEC = "LAUNCHER_ATTEMPT", "LAUNCHER_SPEC"
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
WORKERS = ("LAUNCHER_WORKERS",)


def choose(spec: JobSpec, facts: Facts, gpus: tuple[str, ...] | None, count: int) -> ContainerPlan | None:
    """The container that a job asks for, or None. `gpus` is its devices by index, None where they are chosen when it
    starts. Raises `SettingsError`, and `Unavailable` for a runtime that this host hasn't got or can't use."""
    launch = spec.launch
    kind = ALIASES.get(launch.container.kind, launch.container.kind)
    if kind == "none":
        return None
    # Here and below: jobs without a container don't wait for what only those with one need.
    from launcher.containers import find, preflight

    if launch.image is None:
        raise SettingsError(f"container={kind} needs image=: a name of `image list`, a registry's image, or a file")
    slurm = isinstance(launch.cluster, SlurmCluster)
    if kind == "pyxis" and not slurm:
        raise SettingsError("container=pyxis is a plugin of Slurm; say cluster=slurm, or another container")
    known = facts.containers
    assert known is not None, "the prober gives facts of containers where one is asked for"
    try:
        runtime = preflight.choose(kind, known.runtimes)
    except SettingsError as error:
        raise Unavailable(str(error)) from None
    check_release(spec, facts, launch.image, count)
    if launch.container.pull and not (slurm and kind == "apptainer"):
        raise SettingsError("container.pull=true is for cluster=slurm with container=apptainer; leave it out")
    if not known.image_pull:
        image = find.LocalImage(name=known.image, present=known.image_present, architecture=known.image_architecture)
        find.check_image(image, launch.image, known.architecture, runtime.kind)
    return ContainerPlan(
        runtime=_with_step(runtime, spec),
        image=known.image,
        asked=launch.image,
        identity=known.image_identity,
        pull=known.image_pull,
        mounts=tuple(_mount(mount, facts) for mount in launch.mounts),
        devices=_devices(facts, gpus, count, slurm),
        user=User(uid=known.uid, gid=known.gid, name=facts.user, groups=known.groups),
        network=launch.container.network,
        ipc=launch.container.ipc,
        shm_bytes=None if launch.container.shm is None else launch.container.shm * 2**20,
        forward_compatibility=_needs_compatibility(spec, facts, count),
        limits=dict(launch.container.limits),
    )


def check_container(plan: Plan, facts: Facts) -> None:
    """Refuse a container that its runtime can't carry exactly. Raises `SettingsError`."""
    if plan.container is not None:
        from launcher.containers import preflight

        preflight.check_names([*plan.env, *plan.passed], "env")
        preflight.check_names(plan.secrets, "secrets")
        preflight.check_container(describe(plan, (plan.python,)), plan.container.runtime, facts.missing)


def _rendezvous(plan: Plan) -> tuple[str, ...]:
    """What the script finds out on its first node, for the processes on all of them."""
    if plan.nodes == 1:
        return ()
    return RENDEZVOUS if plan.script and plan.script.bare else WORKERS


def describe(plan: Plan, argv: tuple[Word, ...]) -> Container:
    """The description of a plan's container that runs this command."""
    chosen = plan.container
    assert chosen is not None
    return Container(
        image=chosen.image,
        argv=argv,
        environment={
            **user_script.tracker_ids(plan),
            **plan.env,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "LAUNCHER_RUN_ID": plan.run_id,
            "PYTHONPATH": plan.code_dir,
            "PYTHONUNBUFFERED": "1",
        },
        passed=(ATTEMPT, SPEC, *((CHECKPOINTS,) if plan.script else ()), *_rendezvous(plan)),
        secrets=plan.secrets,
        exports=f"{plan.run_dir}/{job_environment.FILE}" if plan.inherited or plan.passed else "",
        mounts=_mounts(plan, chosen.mounts),
        workdir=plan.script.folder(plan.run_dir) if plan.script and plan.script.bare else plan.code_dir,
        devices=chosen.devices,
        user=chosen.user,
        cache=plan.own_folder(CACHE),
        # Nodes of a rehearsal may share one engine, so a node's container carries its number.
        name=plan.run_id if plan.nodes == 1 else EnvArg("SLURM_NODEID", before=f"{plan.run_id}-"),
        network=chosen.network,  # type: ignore[arg-type]
        ipc=chosen.ipc,  # type: ignore[arg-type]
        shm_bytes=chosen.shm_bytes,
        forward_compatibility=chosen.forward_compatibility,
        limits=chosen.limits,
    )


def wrapped(plan: Plan, argv: tuple[Word, ...]) -> Wrapped:
    from launcher.containers.runtimes import wrap

    assert plan.container is not None
    return wrap(describe(plan, argv), plan.container.runtime)


def check_release(spec: JobSpec, facts: Facts | None, image: str, count: int) -> None:
    """Refuse an image of the catalogue that can't do this job here, naming the nearest release that would. Without GPUs
    (`count`) it depends on the words alone."""
    from launcher.containers import catalogue, references

    release = references.release_of(image, spec.launch.image_is)
    if release is None:
        return
    framework = spec.training.framework
    bare = spec.recipe.name == "script" and spec.training.train.bare
    needs = catalogue.Needs(
        framework=framework,
        version=() if bare else FLOOR.get(framework, ()),
        python=() if bare else PYTHON_FLOOR,
        dlprof=spec.training.profile.tool == "dlprof",
        bfloat16=spec.training.amp.dtype == "bfloat16",
    )
    named = f"{image} ({release.name})" if spec.launch.image_is else ""
    for requirement in (needs, *_on_gpus(needs, spec, facts, count)):
        catalogue.check_release(release, requirement, named)


def advice(spec: JobSpec, facts: Facts, count: int) -> tuple[str, ...]:
    """What an image outside the catalogue says of its CUDA, where these GPUs or their driver can't be expected to do
    with it. What is in the image may bring a CUDA of its own, so that nothing is refused."""
    known = facts.containers
    if known is None or spec.launch.image is None or spec.launch.container.kind == "none":
        return ()
    from launcher.containers import catalogue, references

    if references.release_of(spec.launch.image, spec.launch.image_is) is not None:
        if not _needs_compatibility(spec, facts, count):
            return ()
        own = "its forward compatibility libraries come before this host's driver, which is older than its CUDA needs"
        return (f"image={spec.launch.image}: {own}",)
    if not known.image_cuda:
        return ()
    problems = (
        catalogue.cuda_problem(known.image_cuda, needs) for needs in _on_gpus(catalogue.Needs(), spec, facts, count)
    )
    return tuple(
        f"image={spec.launch.image}: {problem}; expect the job to fail, unless the image holds another CUDA"
        for problem in dict.fromkeys(problems)
        if problem
    )


def _needs_compatibility(spec: JobSpec, facts: Facts, count: int) -> bool:
    """Whether the image was accepted as its own libraries let its CUDA run on this host's driver. Slurm's nodes have
    drivers that are not known here."""
    from launcher.containers import catalogue, references

    assert facts.containers is not None
    release = references.release_of(spec.launch.image or "", spec.launch.image_is)
    cuda, own = (release.cuda, release.driver) if release else (facts.containers.image_cuda, "")
    every = _on_gpus(catalogue.Needs(), spec, facts, count)
    return bool(cuda) and any(catalogue.needs_compatibility(cuda, needs, own) for needs in every)


def _on_gpus(needs: Needs, spec: JobSpec, facts: Facts | None, count: int) -> Iterator[Needs]:
    """The same on each GPU that the job may get, as far as these are known before it starts."""
    from launcher.containers import catalogue

    if not count or facts is None:
        return
    if isinstance(spec.launch.cluster, SlurmCluster):
        yield dataclasses.replace(needs, capability=slurm_check.capability(spec.launch.cluster, facts))
        return
    chosen = spec.launch.visible_gpus
    for gpu in facts.gpus:
        if chosen is None or gpu.index in chosen:
            yield dataclasses.replace(
                needs,
                capability=gpu.compute_capability,
                driver=gpu.driver,
                data_centre=catalogue.is_data_centre(gpu.name),
            )


def _mount(text: str, facts: Facts) -> Mount:
    from launcher.containers import preflight

    mount = preflight.parse_mount(text)
    if mount.source == OWN_FOLDER:
        return mount
    source = facts.home + mount.source[1:] if mount.source.startswith("~/") else mount.source
    return Mount(
        source=posixpath.normpath(posixpath.join(facts.cwd, source)), target=mount.target, read_only=mount.read_only
    )


def _devices(facts: Facts, gpus: tuple[str, ...] | None, count: int, slurm: bool) -> Devices:
    if slurm:
        return "job" if count else ()
    if not facts.gpus:
        return None
    return "job" if gpus is None else gpus


def _with_step(runtime: Runtime, spec: JobSpec) -> Runtime:
    """Pyxis is an option of srun: the step that it starts is the job's own."""
    if runtime.kind != "pyxis":
        return runtime
    cluster = spec.launch.cluster
    words = ["srun", "--ntasks-per-node=1", f"--nodes={spec.launch.nodes}", "--kill-on-bad-exit=0"]
    words += [f"--cpus-per-task={cluster.cpus}"] if cluster.cpus else []
    return dataclasses.replace(runtime, command=tuple(words))


def _mounts(plan: Plan, chosen: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Code, run folder and data, where they are on the host, so that the trainer's words mean the same on both sides;
    and those that were asked for."""
    own = [
        Mount(source=plan.code_dir, target=plan.code_dir, read_only=True),
        Mount(source=plan.run_dir, target=plan.run_dir),
    ]
    if plan.script and plan.script.workdir and not plan.script.in_image:
        own.append(Mount(source=plan.script.workdir, target=plan.script.workdir))
    if plan.script:
        asked = {posixpath.normpath(mount.target) for mount in chosen}
        inputs = dict.fromkeys(plan.script.inputs.values())
        own += [Mount(source=path, target=path, read_only=True) for path in inputs if path not in asked]
    data = plan.settings["data"]
    if data["dir"]:
        own.append(Mount(source=data["dir"], target=data["dir"], read_only=not data["download"]))
    saved = f"{plan.run_dir}/checkpoints"
    saves = (dataclasses.replace(mount, source=saved) if mount.source == OWN_FOLDER else mount for mount in chosen)
    return (*own, *saves)
