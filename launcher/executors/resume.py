"""Resuming runs of this machine in their own folders, from their newest checkpoints, with their own code."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.code import code_store
from launcher.config import job_environment
from launcher.config.schema import ALIASES, CLUSTERS, REACH, SlurmCluster, annotation_of
from launcher.errors import Unavailable, UsageError
from launcher.executors import backends, execute, stopping, submission
from launcher.executors.submission import Start
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.plan.slurm_check import check_time
from launcher.probe import gpu_locks
from launcher.runs import ownership, store
from launcher.runs.states import Seen
from launcher.runs.store import Damaged, Run
from recipes import records
from recipes import settings as trainer_settings
from recipes.precision.support import support_for
from recipes.recipe import NAMES, find
from recipes.typed import SettingsError, build, leaves, nearest, refuse_control_characters, show
from recipes.values import from_text

CHANGEABLE = ("epochs", "steps", "checkpoint.every", "checkpoint.keep", "require_proof")
RANKS = ("nodes", "gpus")
OF_TORCH = ("parallel", *RANKS)
"""Keys that may change for torch's own recipes: any number of ranks, sharded or not, goes on from their checkpoints."""
RESUME_ARGUMENTS = "script.resume_arguments"
OF_SCRIPTS = ("require_proof", RESUME_ARGUMENTS)
"""Keys that may change for a user's script, which decides the rest by itself."""


def resume_here(
    wanted: Sequence[Run],
    assignments: dict[str, str],
    secrets: Mapping[str, bytes],
    *,
    is_sweep: bool,
    start: Start = submission.start,
) -> tuple[list[Path], str]:
    """Start those of the runs again that can be resumed, with the `secrets` that ended with them. Returns their
    folders and their queue.

    Raises `LauncherError`, and then none was started.
    """
    ownership.refuse_anothers("resume", wanted)
    with contextlib.ExitStack() as held:
        for run in wanted:
            held.enter_context(alone(run.folder))
        return _submit(wanted, assignments, secrets, is_sweep, start)


def _submit(
    wanted: Sequence[Run], assignments: dict[str, str], secrets: Mapping[str, bytes], is_sweep: bool, start: Start
) -> tuple[list[Path], str]:
    seen = backends.look(wanted, fresh=True)
    recorded = {row.run: values_of(row) for row in seen}
    before = {run: record.from_json(values) for run, values in recorded.items()}
    for row in seen:
        _check_further(row, before[row.run], assignments)
    plan_of = {run: changes(plan, assignments) for run, plan in before.items()}
    chosen = _choose(
        seen, before, goes_on=bool({"epochs", "steps", RESUME_ARGUMENTS} & assignments.keys()), is_sweep=is_sweep
    )
    changed = [plan_of[row.run] for row in chosen]
    for plan in changed:
        check_place(plan)
        check_secrets(plan, secrets)
    folders = [row.run.folder for row in chosen]
    patched = {row.run.folder: as_recorded(recorded[row.run], plan_of[row.run]) for row in chosen}
    submission.check(changed)
    for folder, plan in zip(folders, changed, strict=True):
        own = job_environment.own_secrets(plan.secrets, plan.run_dir)
        job_environment.lay_secrets({path: secrets[name] for name, path in own.items() if name in secrets})
        lay_down_again(folder, plan, patched[folder])
    start(folders, changed, None)
    return folders, changed[0].queue


def check_place(plan: Plan) -> None:
    """Refuse a run that would fail at once: its code or its Python is gone, or its GPUs are taken. Raises
    `LauncherError`."""
    if not code_store.is_there(Path(plan.code_dir).parent, plan.code):
        raise UsageError(f"the code that {plan.run_id} began with is gone ({plan.code_dir}); start it anew")
    if plan.queue == "direct" and plan.container is None and not Path(plan.python).exists():
        raise UsageError(f"the Python that {plan.run_id} ran with is gone ({plan.python}); start it anew")
    if plan.gpu_pool and not plan.wait_gpus:
        pool = [gpu for gpu in gpu_locks.look() if gpu.uuid in plan.gpu_pool]
        why = gpu_locks.refusal(plan.gpus, pool, plan.host)
        if why:
            raise Unavailable(why)
    try:
        cluster: Any = build(CLUSTERS[plan.cluster["kind"]], plan.cluster, prefix="cluster.")
        if isinstance(cluster, SlurmCluster):
            check_time(cluster)
    except SettingsError as error:
        raise UsageError(f"{error} (command line)") from None


def check_secrets(plan: Plan, secrets: Mapping[str, bytes]) -> None:
    """Refuse a run whose secrets ended with it and were not given, and secrets that it has not. Raises `UsageError`."""
    own = job_environment.own_secrets(plan.secrets, plan.run_dir)
    for name in secrets:
        if name not in own:
            kept = f"; it keeps {', '.join(own)}" if own else ""
            raise UsageError(f"secrets.{name}: {plan.run_id} keeps no secret of that name{kept} (command line)")
    for name, path in own.items():
        if name not in secrets and not path.exists():
            raise UsageError(
                f"secrets.{name} of {plan.run_id} ended with it; say secrets.{name}=FILE again, or secrets.{name} for "
                "its value in this shell"
            )


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a run: two launchers that resume it at once would start it twice. Raises `UsageError`."""
    with open(os.open(folder / ".resume", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder.name} is being resumed by another launcher this moment") from None
        yield


def changes(plan: Plan, assignments: dict[str, str]) -> Plan:
    """The plan with those keys changed, in its settings and in the trainer's words. Raises `UsageError`."""
    settings: dict[str, Any] = {**plan.settings, "checkpoint": {**plan.settings["checkpoint"]}}
    ranks: dict[str, int] = {}
    cluster, words, script = dict(plan.cluster), list(plan.words), plan.script
    for key, text in assignments.items():
        if plan.arms and not key.startswith("cluster."):
            raise UsageError(f"{key}={text}: the arms of a comparison stay as they are; only cluster.* may change")
        own = OF_SCRIPTS if script else (*CHANGEABLE, *OF_TORCH) if plan.framework == "torch" else CHANGEABLE
        allowed = [*own, *(f"cluster.{name}" for name in cluster if name not in ("kind", *REACH))]
        if key not in allowed:
            why = f"{key} can't change when a run is resumed{nearest(key, allowed)}"
            raise UsageError(f"{why}; these can: {', '.join(allowed)}")
        try:
            value = from_text(text, annotation_of(ALIASES.get(key, key)), key)
            for argument in value if key == RESUME_ARGUMENTS else ():
                refuse_control_characters(key, argument)
        except SettingsError as error:
            raise UsageError(f"{error} (command line)") from None
        if script and key == RESUME_ARGUMENTS:
            script = dataclasses.replace(script, resume_arguments=value)
            continue
        if key.startswith("cluster."):
            cluster[key.removeprefix("cluster.")] = list(value) if isinstance(value, tuple) else value
            continue
        least = 0 if key in ("checkpoint.every", "gpus") else 1
        if (value is None and key != "parallel") or (
            isinstance(value, int) and not isinstance(value, bool) and value < least
        ):
            raise UsageError(f"{key}={text} is too small (command line)")
        if key in RANKS:
            ranks[key] = value
            continue
        if key in ("epochs", "steps"):  # one of them says how long it takes
            other = "steps" if key == "epochs" else "epochs"
            settings[other] = None
            words = [word for word in words if not word.startswith((f"{other}=", f"{key}="))]
        words = [word for word in words if not word.startswith(f"{key}=")]
        words.append(f"{key}={show(value)}")
        if key.startswith("checkpoint."):
            settings["checkpoint"][key.removeprefix("checkpoint.")] = value
        else:
            settings[key] = value
    changed = dataclasses.replace(plan, settings=settings, cluster=cluster, words=tuple(words), script=script)
    if ranks:
        changed = _with_ranks(changed, **ranks)
    if "parallel" in assignments:
        changed = dataclasses.replace(changed, mechanism=_mechanism(changed))
    if not {*OF_TORCH}.isdisjoint(assignments):
        _check_trainer(changed)
    return _with_setup(changed, tuple(cluster["setup"])) if "cluster.setup" in assignments else changed


def _with_ranks(plan: Plan, nodes: int | None = None, gpus: int | None = None) -> Plan:
    """The plan on so many nodes, with so many GPUs of each. Raises `UsageError`."""
    if nodes not in (None, 1) and plan.queue != "slurm":
        raise UsageError(f"nodes={nodes} needs cluster=slurm; {plan.run_id} ran on one machine (command line)")
    env = dict(plan.env)
    if gpus is not None and gpus != plan.gpus:
        if plan.container is not None:
            raise UsageError(
                f"gpus={gpus}: the container of {plan.run_id} has {plan.gpus}; start it anew (command line)"
            )
        device = plan.settings["device"]
        if device == "cuda" and gpus == 0:
            raise UsageError(f"gpus=0: {plan.run_id} trains on GPUs, and goes on on GPUs (command line)")
        if device == "cpu" and gpus and plan.queue == "slurm":
            raise UsageError(
                f"gpus={gpus}: {plan.run_id} trains on CPUs, and would reserve GPUs that it does not use; say nodes=N "
                "for another number of ranks (command line)"
            )
        if plan.queue != "slurm":
            if gpus and not plan.gpu_pool:
                raise UsageError(f"gpus={gpus}: {plan.run_id} ran without GPUs; start it anew (command line)")
            if not 0 < gpus <= len(plan.gpu_pool):
                raise UsageError(
                    f"gpus={gpus}: {plan.run_id} began with {len(plan.gpu_pool)} to choose from (command line)"
                )
            env.pop("CUDA_VISIBLE_DEVICES", None)  # of more, run.sh shows those that it takes
            if gpus == len(plan.gpu_pool):
                env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpu_pool)
    gpus = plan.gpus if gpus is None else gpus
    return dataclasses.replace(plan, nodes=nodes or plan.nodes, gpus=gpus, processes=max(1, gpus), env=env)


def _mechanism(plan: Plan) -> str:
    """What carries the plan's level out, sharded or not."""
    settings, known = plan.settings, plan.precision
    return support_for(
        plan.framework,
        settings["amp"]["level"],
        (known and known.dtype) or "bfloat16",  # no mechanism of torch depends on it
        settings["xla"],
        settings["device"],
        master_weights=settings["amp"]["master_weights"],
        parallel=settings["parallel"],
    ).mechanism


def _check_trainer(plan: Plan) -> None:
    """Refuse what the trainer would refuse. Raises `UsageError`."""
    if plan.recipe not in NAMES:  # one of a person's own is in the run's code, which checks it when it starts
        return
    try:
        trainer = trainer_settings.from_values(plan.settings, find(plan.recipe))
        trainer_settings.check(trainer, plan.nodes * plan.processes)
    except SettingsError as error:
        raise UsageError(f"{error} (command line)") from None


def _with_setup(plan: Plan, setup: tuple[str, ...]) -> Plan:
    """The plan with other lines of bash before its job; scripts have them from here, not from the cluster."""
    return dataclasses.replace(plan, setup=setup, arms=tuple(_with_setup(arm, setup) for arm in plan.arms))


def as_recorded(values: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The plan's JSON with what `changes` changed, and else as it was recorded: the code that the run began with may
    know fewer keys than this launcher. Raises `UsageError` for a changed key that it does not know."""
    before = record.from_json(values)
    found = {**values, "words": list(plan.words)}
    for group in ("settings", "cluster"):
        old, new = dict(leaves(getattr(before, group))), dict(leaves(getattr(plan, group)))
        found[group] = copy.deepcopy(values[group])
        for key in (key for key in new if old.get(key) != new[key]):
            *inner, last = key.split(".")
            place = found[group]
            for name in inner:
                place = place.get(name, {})
            if last not in place:
                raise UsageError(f"{key} can't change: {plan.run_id} began with code that has no such key")
            place[last] = new[key]
    if plan.script and before.script and plan.script.resume_arguments != before.script.resume_arguments:
        if "resume_arguments" not in values["script"]:
            raise UsageError(f"{RESUME_ARGUMENTS} can't change: {plan.run_id} began with code that has no such key")
        found["script"] = {**values["script"], "resume_arguments": list(plan.script.resume_arguments)}
    for name in ("mechanism", "nodes", "gpus", "processes", "env"):
        if getattr(plan, name) != getattr(before, name):
            found[name] = getattr(plan, name)
    if plan.setup != before.setup:
        found["setup"] = list(plan.setup)
        if plan.arms:
            found["arms"] = [{**arm, "setup": list(plan.setup)} for arm in values["arms"]]
    return found


def lay_down_again(folder: Path, plan: Plan, values: Mapping[str, Any]) -> None:
    """Make a finished run's folder ready for another submission. The first plan stays as it is; `values`, the plan from
    now on, waits in `attempts/plan.json` until the next attempt begins and takes it into its own folder.

    A run of schema 1 has the newest plan in plan.json, where its code looks for it, and those before in their attempts'
    folders.
    """
    before = max(store.attempts(folder), default=0)
    if plan.schema > 1:
        path = folder / "attempts" / "plan.json"
        if not path.parent.exists():
            store.make_folder(path.parent, shared=plan.shared is not None)
    else:
        path = folder / "plan.json"
        if before:
            earlier = folder / "attempts" / str(before) / "plan.json"
            store.write_text(earlier, path.read_text(), records.record)
    execute.write_scripts(plan, folder)
    store.write_json(path, values)
    stopping.clear_requests(folder)
    store.mark_unfinished(folder.parent, folder.name)


def _choose(seen: Sequence[Seen], before: Mapping[Run, Plan], *, goes_on: bool, is_sweep: bool) -> list[Seen]:
    """Those that can be resumed. Raises `UsageError` if there is none, or if one still runs."""
    for row in seen:
        if not row.state.finished:
            raise UsageError(f"{row.run.id} is {row.state.name}; only a run that has ended can be resumed")
    chosen = [row for row in seen if goes_on or row.state.name != "done"]
    if not chosen:
        what = "every run of this sweep is done" if is_sweep else f"{seen[0].run.id} is done"
        if all(plan.arms for plan in before.values()):
            raise UsageError(f"{what}; a comparison has no more rounds than it began with, so start another one")
        if all(plan.script for plan in before.values()):
            raise UsageError(
                f"{what}; a script decides by itself how long it runs: say {RESUME_ARGUMENTS}=[...] to start it again "
                "with these arguments added, or start it anew"
            )
        raise UsageError(f"{what}; say epochs=N or steps=N to go on with it")
    return chosen


def _check_further(row: Seen, plan: Plan, assignments: dict[str, str]) -> None:
    """Refuse a run that is done and has nothing left to do. Raises `UsageError`."""
    if row.state.name != "done":
        return
    for key in ("epochs", "steps"):
        text, done = assignments.get(key, ""), plan.settings[key]
        if text.isdigit() and done is not None and int(text) <= done:
            raise UsageError(f"{key}={text}: {row.run.id} has done {done} {key} already; say more (command line)")


def values_of(row: Seen) -> dict[str, Any]:
    """The JSON of a run's newest plan. Raises `UsageError`."""
    if row.files.copied:
        raise UsageError(f"{row.run.id} can't be started again from {row.run.folder}: {backends.COPIED}")
    try:
        values = store.read_json(store.plan_path(row.run.folder), own_in=row.run.root)
    except Damaged as error:
        raise UsageError(
            f"{row.run.id} can't be resumed, since its plan can't be read: {error}; start it anew"
        ) from None
    if not values:
        raise UsageError(f"{row.run.id} has no plan.json, so nobody can say what it ran")
    return values
