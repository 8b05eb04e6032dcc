"""Resuming runs of this machine in their own folders, from their newest checkpoints, with their own code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher.precision.support import sharding_problem
from amp_launcher.shown import some
from amp_launcher.typed import SettingsError, build
from launcher.code import code_store, uv_environment, uv_project
from launcher.config import job_environment, shell_record
from launcher.config.schema import Gpus, SlurmCluster
from launcher.errors import Unavailable, UsageError
from launcher.executors import backends, dependency, execute, stopping, submission, trash
from launcher.executors.plan_changes import RESUME_ARGUMENTS, as_recorded, changes
from launcher.executors.taken_back import taken_back
from launcher.plan import record, slurm_check
from launcher.plan.model import Plan
from launcher.probe import gpu_locks, pythons, slurm_probing
from launcher.runs import ownership, run_ids, run_roots, store
from launcher.runs.states import Seen
from launcher.runs.store import Damaged, Run
from launcher.ssh import environment_client

LOCK = ".resume"
"""Of a run's folder: two launchers that resume it at once would start it twice."""


def resume_here(
    wanted: Sequence[Run],
    assignments: dict[str, str],
    secrets: Mapping[str, bytes],
    *,
    is_sweep: bool,
    from_here: bool = False,
) -> tuple[list[Path], str]:
    """Start those of the runs again that can be resumed, with the `secrets` that ended with them. Returns their
    folders and their queue. `from_here` takes the variables of this shell where they differ from those that a script
    began with. Raises `LauncherError`, and then none was started."""
    ownership.refuse_other_users("resume", wanted)
    with contextlib.ExitStack() as locks:
        for run in wanted:
            locks.enter_context(run_roots.alone_with(run.folder, LOCK, "resumed"))
        seen = backends.states_of(wanted, fresh=True)
        recorded = {row.run: values_of(row) for row in seen}
        before = {run: record.of_run(values, run.path) for run, values in recorded.items()}
        for row in seen:
            _check_further(row, before[row.run], assignments)
        changed = {run: changes(plan, assignments) for run, plan in before.items()}
        goes_on = bool({"epochs", "steps", RESUME_ARGUMENTS} & assignments.keys())
        chosen = [row.run for row in _choose(seen, before, goes_on=goes_on, is_sweep=is_sweep)]
        plans = [changed[run] for run in chosen]
        # An attempt waits for other runs until the file that names them goes.
        begun = {run for run in wanted if store.attempts(run.path) and not (run.folder / dependency.FILE).exists()}
        plans = [_after_now(plan, run, begun, chosen) for run, plan in zip(chosen, plans, strict=True)]
        for run, plan in zip(chosen, plans, strict=True):
            bring_code(record.from_json(recorded[run]), plan)
            check_place(plan)
            check_secrets(plan, secrets)
            if plan.inherits_shell and not from_here:
                _check_shell(plan)
            if "parallel" in assignments:
                _check_sharding(plan)
        plans = [with_environment(plan) for plan in with_images(plans)]
        values_from_now = [
            # What was looked up anew is recorded, and else what changed.
            as_recorded(
                recorded[run],
                dataclasses.replace(changed[run], container=plan.container, python=plan.python, arms=plan.arms),
            )
            for run, plan in zip(chosen, plans, strict=True)
        ]
        _check_cluster(plans, assignments)
        submission.check_plans(plans)
        folders = [run.folder for run in chosen]
        with contextlib.ExitStack() as refused:
            for folder, plan, values in zip(folders, plans, values_from_now, strict=True):
                refused.enter_context(taken_back(folder))
                own = job_environment.own_secrets(plan.secrets, plan.run_dir)
                job_environment.write_secrets({path: secrets[name] for name, path in own.items() if name in secrets})
                if from_here:
                    (folder / shell_record.FILE).unlink(missing_ok=True)
                prepare_resume(folder, plan, values)
            submission.start(folders, plans)
    for root in {run.root for run in chosen}:  # it may have been moved
        with contextlib.suppress(OSError):
            run_roots.remember(Path(root))
    return folders, plans[0].queue


def _after_now(plan: Plan, run: Run, begun: Collection[Run], chosen: Sequence[Run]) -> Plan:
    """The plan with the runs that it still comes after: those that are started again with it, and others only where
    neither it nor, in a sweep, another cell has begun, since they have ended then."""
    if plan.after is None or not (run in begun if plan.job is not None else begun):
        return plan
    again = {other.id for other in chosen}
    kept = [f"{kind}:{name}" for kind, name in dependency.parse(plan.after) if name in again]
    return dataclasses.replace(plan, after=",".join(kept) or None)


def bring_code(before: Plan, plan: Plan) -> None:
    """Copy the code of a run that was moved out of its run root, which still has it, into the root that it is in now.
    Raises `UsageError` for code that may not be used."""
    there, here = Path(before.code_dir), Path(plan.code_dir)
    if there != here and not os.path.lexists(here) and code_store.is_there(there.parent, plan.code):
        code_store.store(here.parent, plan.code, code_store.files(there))


def check_place(plan: Plan) -> None:
    """Refuse a run that would fail at once: its code or its Python is gone, or its GPUs are taken. Raises
    `LauncherError`."""
    if not code_store.is_there(Path(plan.code_dir).parent, plan.code):
        raise UsageError(f"the code that {plan.run_id} began with is gone ({plan.code_dir}); start it anew")
    if plan.queue == "direct" and plan.container is None and not (plan.uv or Path(plan.python).exists()):
        raise UsageError(f"the Python that {plan.run_id} ran with is gone ({plan.python}); start it anew")
    if plan.gpu_pool and not plan.wait_gpus:
        pool = [gpu for gpu in gpu_locks.states() if gpu.uuid in plan.gpu_pool]
        why = gpu_locks.refusal(plan.gpus, pool, plan.host)
        if why:
            raise Unavailable(why)


def with_environment(plan: Plan) -> Plan:
    """The plan with its environment of uv, which is made again from the snapshot where it is gone. Raises
    `LauncherError`."""
    plan = dataclasses.replace(plan, arms=tuple(map(with_environment, plan.arms)))
    if plan.uv is None:
        return plan
    name, place = plan.uv.name, uv_environment.place(plan.run_root, plan.shared)
    if not uv_environment.is_ready(place, name):
        held = code_store.files(Path(plan.code_dir))
        files = {file: path for file, path in held.items() if file.startswith(f"{uv_project.FOLDER}/")}
        environment_client.show(uv_environment.make(place, name, files, plan.uv.project, plan.uv.lock))
    return dataclasses.replace(plan, python=str(uv_environment.python_of(place, name)))


def with_images(plans: Sequence[Plan]) -> list[Plan]:
    """The plans with the images that their names mean now. Each image is asked for once. Raises `UsageError` for one
    that this host no longer has."""
    from launcher.containers import find, programs

    known: dict[Any, find.LocalImage] = {}

    def of_now(plan: Plan) -> Plan:
        plan = dataclasses.replace(plan, arms=tuple(map(of_now, plan.arms)))
        container = plan.container
        if container is None or container.pull:  # which a job fetches first
            return plan
        key = container.image, container.runtime, tuple(sorted(plan.host_env.items()))
        if key not in known:
            ask = functools.partial(programs.output, env={**os.environ, **plan.host_env})
            known[key] = find.find_image(container.image, container.runtime, ask)
        if not known[key].present:
            raise UsageError(
                f"{container.runtime.kind} can't find the image that {plan.run_id} ran in ({container.image}); fetch "
                "or build it again, or start the run anew"
            )
        # A plan of before identities were recorded stays as it is.
        identity = container.identity and known[key].identity
        return dataclasses.replace(plan, container=dataclasses.replace(container, identity=identity))

    return list(map(of_now, plans))


def _check_cluster(plans: Sequence[Plan], assignments: Collection[str]) -> None:
    """Refuse what the Slurm cluster can't give, whose limits may have changed. Raises `LauncherError`."""
    slurm = slurm_probing.probe() if plans[0].queue == "slurm" else None
    if slurm is None:
        return
    for plan in plans:
        try:
            cluster = build(SlurmCluster, plan.cluster, prefix="cluster.")
            slurm_check.check_resources(cluster, plan.nodes, Gpus(plan.gpus, plan.gpu_type), slurm)
        except SettingsError as error:
            where = "command line" if error.key in assignments else f"as {plan.run_id} was submitted"
            raise UsageError(f"{error} ({where})") from None


def _check_sharding(plan: Plan) -> None:
    """Refuse parallel=fsdp with a torch that can't shard. Raises `UsageError`."""
    if plan.settings["parallel"] != "fsdp" or plan.container is not None or plan.setup:
        return  # which torch an image has, or what `cluster.setup` loads, isn't known
    searched = job_environment.search_path(os.environ, os.getcwd(), queued=plan.queue == "slurm")
    _, packages = pythons.look_into(plan.python, searched)
    if "torch" in packages and (problem := sharding_problem(packages["torch"])):
        raise UsageError(f"{problem} (command line)")


def _check_shell(plan: Plan) -> None:
    """Refuse a script that would go on with other variables than it began with. Raises `UsageError`."""
    own = {*plan.env, *plan.passed, *plan.secrets}
    names = [name for name in shell_record.differences(Path(plan.run_dir), os.environ) if name not in own]
    if names:
        raise UsageError(
            f"{plan.run_id} began in a shell with other values of {some(names, 8)}: set them as they "
            "were, or say env=here to continue with this shell's"
        )


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


def prepare_resume(folder: Path, plan: Plan, values: Mapping[str, Any]) -> None:
    """Make a finished run's folder ready for another submission. The first plan stays as it is; `values`, the plan from
    now on, waits in `attempts/plan.json` until the next attempt begins and takes it into its own folder."""
    attempts = folder / "attempts"
    if not attempts.exists():
        store.make_folder(attempts, shared=plan.shared is not None)
    execute.write_scripts(plan, folder)
    store.write_json(attempts / "plan.json", values)
    stopping.clear(folder)
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
        raise UsageError(f"{what}; say epochs=N or steps=N to continue it")
    return chosen


def _check_further(row: Seen, plan: Plan, assignments: dict[str, str]) -> None:
    """Refuse a run that is done and has nothing left to do. Raises `UsageError`."""
    if row.state.name != "done":
        return
    for key in ("epochs", "steps"):
        text, done = assignments.get(key, ""), plan.settings[key]
        if text.isdecimal() and done is not None and int(text) <= done:
            raise UsageError(f"{key}={text}: {row.run.id} has done {done} {key} already; say more (command line)")


def values_of(row: Seen) -> dict[str, Any]:
    """The JSON of a run's newest plan. Raises `UsageError`."""
    if row.files.copied:
        raise UsageError(f"{row.run.id} can't be started again from {row.run.folder}: {backends.COPIED}")
    if trash.root_of(row.run) != row.run.root:
        raise UsageError(f"{row.run.id} is in the trash; `mv {row.run.folder} {trash.root_of(row.run)}` brings it back")
    if (of := row.files.copy_of) and os.path.basename(of) == row.run.id:
        raise UsageError(
            f"{row.run.folder} is a copy of {of}: start that one, or give this folder a name of its own, with which "
            f"it is another run: mv {row.run.folder} {row.run.root}/{run_ids.new_id(time.time())}"
        )
    try:
        values = store.read_json(store.plan_path(row.run.folder), own_in=row.run.root)
    except Damaged as error:
        raise UsageError(
            f"{row.run.id} can't be resumed, since its plan can't be read: {error}; start it anew"
        ) from None
    if not values:
        raise UsageError(f"{row.run.id} has no plan.json, so nobody can say what it ran")
    return values
