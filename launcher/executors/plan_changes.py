"""What may change of a run's plan when it is resumed, and the record of that. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from amp_launcher import settings as trainer_settings
from amp_launcher.precision.support import support_for
from amp_launcher.recipe import NAMES, find
from amp_launcher.typed import build, nearest, refuse_control_characters, show
from amp_launcher.values import from_text
from launcher.config.launch_checks import check_cluster
from launcher.config.schema import ALIASES, CLUSTERS, REACH, annotation_of
from launcher.errors import TYPED, UsageError, of_settings
from launcher.plan import record
from launcher.plan.model import Plan

CHANGEABLE = ("epochs", "steps", "checkpoint.every", "checkpoint.keep", "require_proof")
RANKS = ("nodes", "gpus")
OF_TORCH = ("parallel", *RANKS)
"""Keys that may change for torch's own recipes: any number of ranks, sharded or not, resumes from their checkpoints."""
RESUME_ARGUMENTS = "script.resume_arguments"
OF_SCRIPTS = ("require_proof", RESUME_ARGUMENTS)
"""Keys that may change for a user's script, which decides the rest by itself."""


def changes(plan: Plan, assignments: Mapping[str, str]) -> Plan:
    """The plan with those keys changed, in its settings and in the trainer's words. Raises `UsageError`."""
    values = {key: _value(plan, key, text) for key, text in assignments.items()}
    cluster, words, script = dict(plan.cluster), list(plan.words), plan.script
    settings: dict[str, Any] = {**plan.settings, "checkpoint": {**plan.settings["checkpoint"]}}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        if group == "cluster":
            cluster[name] = list(value) if isinstance(value, tuple) else value
        elif script and key == RESUME_ARGUMENTS:
            script = dataclasses.replace(script, resume_arguments=value)
        elif key not in RANKS:
            other = {"epochs": "steps", "steps": "epochs"}.get(key)  # one of them says how long it takes
            if other:
                settings[other] = None
            words = [*(word for word in words if word.partition("=")[0] not in (key, other)), f"{key}={show(value)}"]
            (settings[group] if group else settings)[name] = value
    with of_settings(after=TYPED):
        check_cluster(build(CLUSTERS[cluster["kind"]], cluster, prefix="cluster."))
    changed = dataclasses.replace(plan, settings=settings, cluster=cluster, words=tuple(words), script=script)
    if ranks := {key: values[key] for key in RANKS if key in values}:
        changed = _with_ranks(changed, **ranks)
        if "cluster.cpus" in values:
            changed = dataclasses.replace(changed, cluster=cluster)
    if "parallel" in values:
        changed = dataclasses.replace(changed, mechanism=_mechanism(changed))
    if not {*OF_TORCH}.isdisjoint(values):
        _check_trainer(changed)
    return _with_setup(changed, tuple(cluster["setup"])) if "cluster.setup" in values else changed


def of_cluster(plan: Plan) -> list[str]:
    """The keys of the plan's cluster that may change: not where it is."""
    return [f"cluster.{name}" for name in plan.cluster if name not in ("kind", *REACH)]


def _value(plan: Plan, key: str, text: str) -> Any:
    """The value that the text is for that key. Raises `UsageError` for one that can't change, or not to that."""
    if plan.arms and not key.startswith("cluster."):
        raise UsageError(f"{key}={text}: the arms of a comparison stay as they are; only cluster.* may change")
    own = OF_SCRIPTS if plan.script else (*CHANGEABLE, *OF_TORCH) if plan.framework == "torch" else CHANGEABLE
    allowed = [*own, *of_cluster(plan)]
    if key not in allowed:
        why = f"{key} can't change when a run is resumed{nearest(key, allowed)}"
        raise UsageError(f"{why}; these can: {', '.join(allowed)}")
    with of_settings(after=TYPED):
        value = from_text(text, annotation_of(ALIASES.get(key, key)), key)
        for argument in value if key == RESUME_ARGUMENTS else ():
            refuse_control_characters(key, argument)
    if key in own:
        least = 0 if key in ("checkpoint.every", "gpus") else 1
        if getattr(value, "kind", ""):
            raise UsageError(f"gpus={text}: a run keeps the type of its GPUs; say gpus={value:d} (command line)")
        too_small = (value is None and key != "parallel") or (isinstance(value, int) and value < least)
        if too_small:
            raise UsageError(f"{key}={text} is too small (command line)")
    return value


def _with_ranks(plan: Plan, nodes: int | None = None, gpus: int | None = None) -> Plan:
    """The plan on so many nodes, with so many GPUs of each. Raises `UsageError`."""
    slurm, device, run = plan.queue == "slurm", plan.settings["device"], plan.run_id
    if nodes not in (None, 1) and not slurm:
        raise UsageError(f"nodes={nodes} needs cluster=slurm; {run} ran on one machine (command line)")
    env = dict(plan.env)
    if gpus is not None and gpus != plan.gpus:
        most = len(plan.gpu_pool)
        for wrong, why in (
            (plan.container is not None, f": the container of {run} has {plan.gpus}; start it anew"),
            (device == "cuda" and gpus == 0, f": {run} trains on GPUs, and continues on GPUs"),
            (
                device == "cpu" and gpus and slurm,
                f": {run} trains on CPUs, and would reserve GPUs that it does not use; say nodes=N for another number "
                "of ranks",
            ),
            (not slurm and gpus and not most, f": {run} ran without GPUs; start it anew"),
            (not slurm and not 0 < gpus <= most, f": {run} began with {most} to choose from"),
        ):
            if wrong:
                raise UsageError(f"gpus={gpus}{why} (command line)")
        if not slurm:
            env.pop("CUDA_VISIBLE_DEVICES", None)  # of more, run.sh shows those that it takes
            if gpus == most:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpu_pool)
    gpus = plan.gpus if gpus is None else gpus
    if gpus and plan.gpus and (cpus := plan.cluster.get("cpus")):
        plan = dataclasses.replace(plan, cluster={**plan.cluster, "cpus": max(1, cpus * gpus // plan.gpus)})
    return dataclasses.replace(plan, nodes=nodes or plan.nodes, gpus=int(gpus), processes=max(1, gpus), env=env)


def _mechanism(plan: Plan) -> str:
    """What carries the plan's level out, sharded or not."""
    settings = plan.settings
    return support_for(
        plan.framework,
        settings["amp"]["level"],
        "bfloat16",  # no mechanism of torch depends on it
        settings["xla"],
        settings["device"],
        master_weights=settings["amp"]["master_weights"],
        parallel=settings["parallel"],
    ).mechanism


def _check_trainer(plan: Plan) -> None:
    """Refuse what the trainer would refuse. Raises `UsageError`."""
    if plan.recipe not in NAMES:  # one of a person's own is in the run's code, which checks it when it starts
        return
    with of_settings(after=TYPED):
        trainer = trainer_settings.from_values(plan.settings, find(plan.recipe))
        trainer_settings.check_settings(trainer, plan.nodes * plan.processes)


def _with_setup(plan: Plan, setup: tuple[str, ...]) -> Plan:
    """The plan with other lines of bash before its job; scripts have them from here, not from the cluster."""
    return dataclasses.replace(plan, setup=setup, arms=tuple(_with_setup(arm, setup) for arm in plan.arms))


def as_recorded(values: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The plan's JSON with what `changes` changed, and else as it was recorded: the code that the run began with may
    know fewer keys than this launcher. Raises `UsageError` for a changed key that it does not know."""
    try:
        return _merged(values, record.to_json(record.from_json(values)), record.to_json(plan))
    except KeyError as error:
        key = str(error.args[0]).removeprefix("settings.")
        raise UsageError(f"{key} can't change: {plan.run_id} began with code that has no such key") from None


def _merged(
    recorded: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any], at: str = ""
) -> dict[str, Any]:
    """`recorded` with the values that differ between `before` and `now`. Raises `KeyError` for one that it lacks."""
    merged = dict(recorded)
    for name in (name for name in now if before.get(name) != now[name]):
        if name not in recorded:
            raise KeyError(f"{at}{name}")
        if name == "arms":
            merged[name] = [_merged(*arm) for arm in zip(recorded[name], before[name], now[name], strict=True)]
        elif isinstance(now[name], Mapping) and name != "env":  # whose keys are the user's
            merged[name] = _merged(recorded[name], before[name], now[name], f"{at}{name}.")
        else:
            merged[name] = now[name]
    return merged
