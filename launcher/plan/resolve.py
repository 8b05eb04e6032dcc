"""`resolve(spec, facts) -> Plan`: the fully resolved job as a value. Pure: no files, processes, network or clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from amp_launcher import settings
from amp_launcher.around import script
from amp_launcher.paddle_apis import is_static
from amp_launcher.precision import resolved
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.support import ONEDNN
from amp_launcher.typed import SettingsError, plain, refuse_control_characters
from launcher.config import job_environment, placeholders
from launcher.config.launch_checks import LONGEST_NAME
from launcher.config.schema import SlurmCluster
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, UsageError, attempts, placed
from launcher.plan import advice as plan_advice
from launcher.plan import container as plan_container
from launcher.plan import gpu_choice, profilers, requirements, shell_gpus, slurm_check, user_script
from launcher.plan.model import PLACEHOLDER, Decided, Plan, ScriptPlan, UvPlan
from launcher.probe.facts import Facts, Gpu
from launcher.runs import address as addresses
from launcher.runs.store import SECRETS

T = TypeVar("T")


def resolve(spec: JobSpec, facts: Facts) -> Plan:
    """The plan of a job on a host. Raises `UsageError` for what that host can't do."""
    for check in _PLACE:
        _refused(check, spec, facts)
    return _refused(_plan, spec, facts)


def refusals(spec: JobSpec, facts: Facts) -> tuple[Plan | None, list[LauncherError]]:
    """The plan of a job, or everything for which a host refuses it: each check by itself, not the first alone."""
    checks: list[tuple[str, Callable[[JobSpec, Facts], Any]]] = [("", check) for check in (*_PLACE, *_PYTHON, _plan)]
    made, failed = attempts(checks, lambda check: _refused(check, spec, facts))
    return made.get(len(checks) - 1), list({str(error): error for _, error in failed}.values())


def _refused(check: Callable[[JobSpec, Facts], T], spec: JobSpec, facts: Facts) -> T:
    try:
        return check(spec, facts)
    except SettingsError as error:
        raise UsageError(placed(str(error), spec.place(error.key))) from None


def resolve_text(spec: JobSpec) -> tuple[ScriptPlan, ResolvedPrecision]:
    """A bare command in an image, on any host with a GPU: the words alone decide it. Raises `SettingsError`."""
    if spec.launch.image is not None:
        plan_container.check_release(spec, None, spec.launch.image, 0)
    planned = user_script.choose(spec, None)
    assert planned is not None
    return planned, _precision(spec, None, "cuda", None)


def _plan(spec: JobSpec, facts: Facts) -> Plan:
    spec, advice_on_framework = user_script.with_framework(spec, facts)
    launch, training = spec.launch, spec.training
    slurm = isinstance(launch.cluster, SlurmCluster)
    facts, advice_on_shells_gpus = shell_gpus.restrict(spec, facts)
    gpus, count = gpu_choice.choose(spec, facts)
    spec, advice_on_cpus = slurm_check.with_cpus(spec, facts, count)
    launch = spec.launch
    device = gpu_choice.device(spec, facts, count)
    processes, devices = gpu_choice.processes(spec, count)
    if training.framework == "paddle" and processes > 1 and getattr(training.train, "api", "loop") != "loop":
        raise SettingsError(
            f"train.api={training.train.api} runs in one process; say gpus=1, or train.api=loop", "gpus"
        )
    settings.check_settings(training, launch.nodes * devices)
    capability = _capability(spec, facts, gpus, count)
    precision = _precision(spec, facts, device, capability)
    plan_advice.check_memory(spec, gpus, device, launch.nodes * devices)
    gpu_choice.check_free(spec, facts, gpus, count)
    indices = tuple(str(gpu.index) for gpu in gpus) if len(gpus) == count else None
    profilers.check_profiler(spec, facts, device)
    container = plan_container.choose(spec, facts, indices, count)
    for check in _PYTHON:
        check(spec, facts)
    requirements.check_build(spec, facts, gpus if device == "cuda" else ())
    inherits_shell = job_environment.inherits_shell(spec.recipe.name, launch.cluster.kind, container is not None)
    inherited = tuple(
        name
        for name in job_environment.standard(facts.environment)  # another host may say anything
        if not inherits_shell and name not in launch.env and (container is None or name in job_environment.ANYWHERE)
    )
    passed = _passed(spec, facts, inherits_shell)
    shell = {name: name for name in facts.shell if launch.cluster.kind == "local"}
    searched = job_environment.search_path(shell, facts.cwd, contained=container is not None)
    taken = {*passed, *launch.env, *launch.secrets, *searched}
    left_behind = job_environment.left_behind(facts.shell, taken)
    left_behind = () if inherits_shell else left_behind
    settled = dataclasses.replace(
        training,
        device=device,
        data=dataclasses.replace(training.data, dir=training.data.dir and facts.absolute(training.data.dir)),
    )
    plan = Plan(
        name=launch.name or _name(spec),
        run_root=facts.run_root,
        queue="slurm" if slurm else "direct",
        host=facts.host,
        recipe=spec.recipe.name,
        framework=training.framework,
        mechanism=precision.mechanism,
        precision=_decided(spec, precision),
        settings=plain(settled),
        # The data folder reaches the trainer as its settings have it, absolute.
        words=tuple(f"data.dir={settled.data.dir}" if word.startswith("data.dir=") else word for word in spec.words),
        trainer=spec.recipe.trainer(training.framework, training.amp.claims),
        python=facts.python,
        uv=UvPlan(name=facts.uv, project=facts.uv_project, lock=facts.uv_lock) if facts.uv else None,
        code=facts.code.digest,
        shared=facts.uid if launch.share == "group" else None,
        nodes=launch.nodes,
        gpus=count,
        gpu_type=launch.gpus.kind if slurm and launch.gpus else "",
        gpu_pool=tuple(gpu.uuid for gpu in gpus),
        wait_gpus=launch.wait_gpus or (launch.after is not None and not slurm),
        processes=processes,
        host_env={
            **(_slurm_environment(facts) if slurm else {}),
            **(facts.containers.environment if container and facts.containers else {}),
        },
        env={
            **gpu_choice.environment(indices, slurm, container is not None),
            **user_script.environment(precision.mechanism, training.amp.level),
            **({ONEDNN: "1"} if precision.mechanism == "grappler" and precision.device == "cpu" else {}),
            **{name: value for name, value in launch.env.items() if value is not None},
        },
        inherited=inherited,
        passed=passed,
        left_behind=left_behind,
        secrets=_secrets(spec, facts),
        setup=launch.cluster.setup,
        cluster=plain(launch.cluster),
        preemption=slurm_check.preemption(launch.cluster, facts),
        container=container,
        telemetry=launch.telemetry.every,
        script=user_script.choose(spec, facts),
        after=launch.after,
        restarts=launch.restart.max,
        notify=requirements.notify(spec, facts),
        tracker=launch.tracker,
        job=spec.job,
        swept=spec.swept,
        advice=(
            *_advice(spec, facts, count),
            *advice_on_framework,
            *advice_on_shells_gpus,
            *_advice_on_shell(spec, left_behind),
            *slurm_check.advice(spec, facts),
            *gpu_choice.advice(spec, facts, count),
            *plan_container.advice(spec, facts, count),
            *plan_advice.advice(spec, gpus, device, precision.dtype, launch.nodes * devices, capability),
            *profilers.advice(spec),
            *plan_advice.advice_on_gemm(spec, facts, device, launch.nodes * devices),
            *user_script.advice(spec, facts, count, precision),
            *advice_on_cpus,
            *launch.notes,
        ),
        command=spec.command,
    )
    plan_container.check_container(plan, facts)
    _check_paths(plan)
    return plan


def _name(spec: JobSpec) -> str:
    """What a run is called that was given no name: recipe or script, mode, and the swept arguments of the script."""
    stem = user_script.stem(spec.launch) or spec.recipe.name
    swept = placeholders.part_of_name(spec.swept, spec.launch.sweep)
    mode = f"-{spec.training.amp.asked}" if spec.training.amp.claims else ""
    return f"{stem}{mode}{swept}"[:LONGEST_NAME]


def _check_paths(plan: Plan) -> None:
    """Refuse folders with names that run.sh can't hold, the current folder among them. Raises
    `SettingsError`."""
    refuse_control_characters("python", plan.python)
    refuse_control_characters("data.dir", plan.settings["data"]["dir"] or "")
    if plan.script is not None:
        refuse_control_characters("workdir", plan.script.workdir)
        for path in plan.script.inputs.values():
            refuse_control_characters("script.inputs", path)


def _check_root(spec: JobSpec, facts: Facts) -> None:
    refuse_control_characters("run_root", facts.run_root)
    if facts.run_root_problem:
        root = spec.launch.run_root
        raise SettingsError(f"run_root={root}: {facts.run_root_problem}; name another folder")


_PLACE = (_check_root, requirements.check_data, requirements.check_secrets, slurm_check.check_request)
"""Whether what the job reads and writes is there."""
_PYTHON = (requirements.check_python, requirements.check_gemm)


def _capability(spec: JobSpec, facts: Facts, gpus: tuple[Gpu, ...], count: int) -> tuple[int, int] | None:
    """The compute capability to plan for, None without GPUs or where it is unknown."""
    cluster = spec.launch.cluster
    if isinstance(cluster, SlurmCluster):
        kind = spec.launch.gpus.kind if spec.launch.gpus else ""
        return slurm_check.capability(cluster, facts, kind) if count else None
    return min((known for gpu in gpus if (known := gpu.compute_capability) is not None), default=None)


def _precision(
    spec: JobSpec, facts: Facts | None, device: str, capability: tuple[int, int] | None
) -> ResolvedPrecision:
    """The precision on that device. Raises `SettingsError` where nothing carries the level out."""
    training = spec.training
    environ = {name: value for name, value in spec.launch.env.items() if value is not None}
    if spec.recipe.name == "script":
        return script.resolve(
            training,
            user_script.source(spec, facts),
            device=device,
            capability=capability,
            environ=environ,
            ngc_tensorflow1=user_script.is_ngc_tensorflow1(spec),
        )
    return resolved.resolve(
        training.amp,
        training.loss_scale,
        framework=training.framework,
        device=device,
        capability=capability,
        environ=environ,
        tf32=training.tf32,
        xla=training.xla,
        parallel=training.parallel,
        static=is_static(training),
    )


def _decided(spec: JobSpec, precision: ResolvedPrecision) -> Decided | None:
    """What each `auto` became; None for a script that nothing of ours is applied to."""
    training, amp = spec.training, spec.training.amp
    if spec.recipe.name == "script" and (training.train.bare or training.train.precision == "script"):
        return None
    unknown = precision.device == "cuda" and precision.capability is None
    open_dtype = unknown and amp.dtype == "auto" and amp.level != "o0"
    return Decided(
        dtype=None if open_dtype else precision.dtype,
        loss_scale=None if open_dtype and training.loss_scale.mode == "auto" else precision.loss_scale.mode,
        tf32=None if unknown and precision.tf32 else precision.tf32,
    )


def _slurm_environment(facts: Facts) -> dict[str, str]:
    """What a job finds set, since it gets nothing of the environment it was submitted from."""
    assert facts.slurm is not None
    who = {"HOME": facts.home, "USER": facts.user, "LOGNAME": facts.user, "LANG": "C.UTF-8"}
    return {**who, **facts.slurm.environment}


def _passed(spec: JobSpec, facts: Facts, inherits_shell: bool) -> tuple[str, ...]:
    """Variables that are passed on from the shell. Raises `SettingsError` for one that is not set there."""
    launch = spec.launch
    rest = [name for name in facts.shell if name not in launch.secrets]
    passed = job_environment.passed_on(launch.env, rest, launch.env_from == "shell" and not inherits_shell)
    for name in passed:
        if job_environment.is_decided(name):
            raise SettingsError(
                f"env.{name} has no value, and a plan depends on it; say env.{name}=VALUE", f"env.{name}"
            )
        if name not in facts.shell:
            why = "is the place's own" if job_environment.of_place({name: ""}) else "is not set in this shell"
            raise SettingsError(f"env.{name} has no value, and {name} {why}; say env.{name}=VALUE", f"env.{name}")
    return passed


def _secrets(spec: JobSpec, facts: Facts) -> dict[str, str]:
    """Where the job finds the files with its secrets. Those that go to another host, or come from a variable, are kept
    in its run folder while it runs."""
    secrets = spec.launch.secrets
    far = addresses.of(spec.launch.cluster) is not None
    own = f"{facts.run_root}/{PLACEHOLDER}/{SECRETS}"
    return {name: f"{own}/{name}" if far or path is None else facts.absolute(path) for name, path in secrets.items()}


def _advice_on_shell(spec: JobSpec, left_behind: tuple[str, ...]) -> Iterator[str]:
    """A recipe on this machine reads none of the shell's variables."""
    count = len(left_behind)
    if count and (spec.recipe.name == "script" or spec.launch.cluster.kind != "local"):
        stay = f"{count} variables of this shell stay" if count > 1 else f"{left_behind[0]} of this shell stays"
        yield f"{stay} behind: {job_environment.LEFT_BEHIND}"


def _advice(spec: JobSpec, facts: Facts, count: int) -> list[str]:
    sentences = [f"running without a GPU: {facts.gpu_problem}"] if facts.gpu_problem and not count else []
    if requirements.is_loaded(spec, facts):
        framework = spec.training.framework
        sentences.append(f"not checked: {framework} with what cluster.setup loads; a run ends at once without it")
    if not facts.uv_is_made:
        sentences.append(f"the environment of {facts.uv_lock} isn't made yet: `run` makes it and checks the lock")
    if facts.containers and facts.containers.image_pull:
        sentences.append("the image isn't here yet: a job of its own fetches it first (pull.log)")
    if facts.ends_at_logout and not isinstance(spec.launch.cluster, SlurmCluster):
        ends = f"{facts.host} ends your processes when you log out (KillUserProcesses=yes), this run too"
        allowed = f"`loginctl enable-linger {facts.user}` there, or its administrator, can allow them to stay"
        sentences.append(f"{ends}; {allowed}")
    return sentences
