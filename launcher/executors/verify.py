"""Replaying some steps of a run of this machine, in a run folder of its own."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher import records, step_record
from amp_launcher.loop import checkpoint
from amp_launcher.settings import Profile
from amp_launcher.typed import nearest, plain
from launcher.config import job_environment
from launcher.config.launch_checks import LONGEST_NAME
from launcher.config.schema import REACH
from launcher.errors import UsageError
from launcher.executors import backends, plan_changes, resume, submission
from launcher.plan import record
from launcher.plan.model import PLACEHOLDER, Plan, ReplayPlan
from launcher.runs import ownership, run_ids, run_roots, store
from launcher.runs.schema import ResultRecord
from launcher.runs.store import SECRETS, Run

ORIGINAL = "original"
"""Folder of a replay with what it is compared with: the run's record, and the checkpoint of the last step."""
CHECKPOINTS = "checkpoints"


class Started(NamedTuple):
    """A replay that was started."""

    folder: Path
    first: int
    """Step of the checkpoint that it starts from; 0 is the run's beginning."""
    step: int
    """The last step that it replays."""
    recorded: bool
    """Whether each step is compared, or the last one's checkpoint alone."""


def verify_here(
    run: Run,
    step: int | None,
    assignments: dict[str, str],
    secrets: Mapping[str, bytes],
    *,
    name: str = PLACEHOLDER,
    token: str | None = None,
) -> Started:
    """Replay a run up to `step`, None for the last one that can be compared, with the `secrets` that ended with it,
    under the run id `name` and with `token` in its provenance, where these are given. Raises `LauncherError`, and then
    nothing is left."""
    ownership.refuse_other_users("verify", [run])
    with run_roots.alone_with(run.folder, resume.LOCK, "resumed"):
        (row,) = backends.states_of([run], fresh=True)
        values = resume.values_of(row)
        before = record.of_run(values, run.path)
        _check_kind(run, before)
        if not row.state.finished:
            raise UsageError(f"{run.id} is {row.state.name}; only a run that has ended can be verified")
        if store.read(ResultRecord, run.folder / "result.json").determinism == "best_effort":
            raise UsageError(
                f"{run.id} is not comparable: its result is best_effort, so that a replay may differ in the last bits; "
                "say deterministic=true for a run that is to be verified"
            )
        replay, recorded = _choose(run, step)
        changed = plan_changes.changes(before, _of_cluster(before, assignments))
        resume.bring_code(record.from_json(values), changed)
        resume.check_place(changed)
        (changed,) = resume.with_images([changed])
        changed = resume.with_environment(changed)
        plan = _plan(changed, values, replay, name)
        resume.check_secrets(before, secrets)

        def populate(folder: Path) -> None:
            write_replay(run.folder, folder, replay, recorded)
            own = job_environment.own_secrets(before.secrets, before.run_dir)
            held = {name: secrets.get(name) or path.read_bytes() for name, path in own.items()}
            job_environment.write_secrets({folder / SECRETS / name: content for name, content in held.items()})

        came_from = store.read_or_empty(run.folder / "provenance.json")
        came_from.pop("token", None)
        if token is not None:
            came_from["token"] = token
        came_from["command"] = ["python", "-m", "launcher", *plan.command]
        (folder,) = submission.submit([plan], came_from, populate=[populate])
    return Started(folder, replay.first, replay.step, recorded)


def _check_kind(run: Run, plan: Plan) -> None:
    """Refuse what is not one of our trainers. Raises `UsageError`."""
    if plan.arms:
        raise UsageError(f"{run.id} is a comparison; verify takes a run of a single mode")
    if plan.script is not None:
        raise UsageError(
            f"{run.id} runs a script of your own ({plan.script.line()}), whose checkpoints and steps only it can "
            "repeat; verify takes runs of recipes"
        )
    if plan.replay is not None:
        raise UsageError(f"{run.id} is itself a replay, of {plan.replay.run}: verify that one")


def _choose(run: Run, step: int | None) -> tuple[ReplayPlan, bool]:
    """What to replay, and whether each of its steps is recorded. Raises `UsageError`."""
    saved = checkpoint.steps(run.folder / CHECKPOINTS)
    last = recorded_until(run.folder)
    choices = f"step={', '.join(map(str, saved))}" if saved else "it has none"
    if step is None:
        if not saved and not last:
            raise UsageError(f"{run.id} has neither a checkpoint nor a record, so nothing can be compared")
        step = last or saved[-1]
    elif last and step > last:
        raise UsageError(f"step={step}: {run.id} has recorded steps 1 to {last} (command line)")
    elif not last and step not in saved:
        raise UsageError(
            f"step={step}: {run.id} has no record of each step (verify.record=true keeps one), so only steps with a "
            f"checkpoint can be compared: {choices} (command line)"
        )
    if not last and store.read_or_empty(run.folder / CHECKPOINTS / f"step-{step:09d}" / "manifest.json").get("shards"):
        raise UsageError(
            f"{run.id} is not comparable: its checkpoints are in shards of several ranks, and without a record of each "
            "step (verify.record=true keeps one) these are not compared"
        )
    first = max((earlier for earlier in saved if earlier < step), default=0)
    return ReplayPlan(run=run.id, first=first, step=step), bool(last)


def recorded_until(folder: Path) -> int:
    """The last step that a run has recorded; 0 where it has recorded none. Raises `UsageError` for a damaged record."""
    path, last = step_record.path_of(folder, 0), 0
    try:
        for row in step_record.read(path):
            last = row.step
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None
    return last


def _of_cluster(plan: Plan, assignments: dict[str, str]) -> dict[str, str]:
    """The assignments. Raises `UsageError` for one that would change more than where the cluster puts the replay."""
    allowed = ["step", *plan_changes.of_cluster(plan)]
    for key, text in assignments.items():
        if key in ("cluster", "cluster.kind", *(f"cluster.{name}" for name in REACH)):
            raise UsageError(
                f"{key}={text}: a replay needs the run's files and devices, so it runs where the run ran. To hold "
                "another host to it, start the run there too, with verify.record=true, and `fetch` it: where the hosts "
                "agree, the files in verify/ of both runs are the same, byte for byte"
            )
        if key not in allowed:
            raise UsageError(
                f"{key}={text}: a replay has the settings of the run{nearest(key, allowed)}; these can change: "
                f"{', '.join(allowed)}"
            )
    return assignments


def _plan(plan: Plan, values: Mapping[str, Any], replay: ReplayPlan, name: str) -> Plan:
    """The run's plan as that of its replay. Of the settings it has those in `values`, the plan as it was recorded: the
    code that the run began with may know fewer than this launcher."""
    settings = {
        **plan.settings,
        "checkpoint": {**plan.settings["checkpoint"], "keep": 1, "stop_every": 0},
        "profile": {**plan.settings["profile"], **plain(Profile())},
        "verify": {"record": True},
    }
    settings = plan_changes.as_recorded(values, dataclasses.replace(plan, settings=settings))["settings"]
    own = job_environment.own_secrets(plan.secrets, plan.run_dir)
    moved = {secret: f"{plan.run_root}/{PLACEHOLDER}/{SECRETS}/{secret}" for secret in own}
    unbound = dataclasses.replace(
        plan,
        run_id=PLACEHOLDER,
        name=name_of(replay.run),
        settings=settings,
        secrets={**plan.secrets, **moved},
        replay=replay,
        after=None,
        notify=(),
        tracker=None,
        restarts=None,
        swept=(),
        advice=(),
        command=("verify", replay.run, f"step={replay.step}"),
    )
    return unbound if name == PLACEHOLDER else unbound.bind(name)


def write_replay(run: Path, folder: Path, replay: ReplayPlan, recorded: bool) -> None:
    """Put into a replay's folder what it needs of the run: the checkpoints that it may start from, the newest of which
    may be damaged, that of its last step, the record, the variables that were passed on."""
    for step in checkpoint.steps(run / CHECKPOINTS):
        if step <= replay.first or step == replay.step:
            place = folder if step <= replay.first else folder / ORIGINAL
            name = f"step-{step:09d}"
            _link(run / CHECKPOINTS / name, place / CHECKPOINTS / name)
    if recorded:
        _link(run / step_record.FOLDER, folder / ORIGINAL / step_record.FOLDER)
    environment = run / job_environment.FILE
    if environment.exists():
        shutil.copy2(environment, folder / job_environment.FILE)


def _link(source: Path, target: Path) -> None:
    """The files of a folder in another one, as hard links where the file system has them: nothing writes into a
    checkpoint or a record of an ended run, and a state may be of many GiB."""
    for made in (target.parent.parent, target.parent):
        if not made.exists():
            records.make_folder(made)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"), copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def name_of(run: str) -> str:
    """What the replay of a run is called."""
    return f"verify-{run_ids.words_of(run)}"[:LONGEST_NAME]
