"""`after=`: which runs it names, and whether a run can come after them.

Slurm queues by them; without a scheduler the run's own script waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.errors import UsageError
from launcher.executors import backends
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.runs import ownership, processes, run_ids, run_roots, selection, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run

FILE = "after"
"""Of a run's folder until it may start: a line for each run that it waits for, how that has to end, `ok` or `any`, and
its folder."""


class Others(NamedTuple):
    """What a run comes after: one item of `after=`."""

    kind: str
    """How they have to end: `ok` or `any`."""
    name: str
    """Of the run or sweep, as it was typed."""
    runs: tuple[Run, ...]


def parse(after: str) -> list[tuple[str, str]]:
    """How each of the other runs has to end, `ok` or `any`, and its name. Raises `UsageError`."""
    items = []
    for item in after.split(","):
        kind, _, name = item.strip().rpartition(":")
        if kind not in ("", "ok", "any") or not name:
            raise UsageError(
                f"after={after}: say after=RUN, once it is done, or after=any:RUN, however it ends; several as "
                "after=RUN,any:RUN"
            )
        items.append((kind or "ok", name))
    return items


def named(after: str, of: Run) -> list[Others]:
    """The runs that a run comes after; a cell of its own sweep or chain is in its own root. Raises `UsageError` if
    there is none by a name, or it is another user's."""
    found = []
    for kind, name in parse(after):
        if run_ids.sweep_of(name) is not None and run_ids.sweep_of(name) == run_ids.sweep_of(of.id):
            runs: tuple[Run, ...] = (Run(of.root, name),)
        else:
            runs = selection.find(name, run_roots.named(None)).runs
        ownership.refuse_other_users(f"after={after}", runs)
        found.append(Others(kind, name, runs))
    return found


def check_after(plans: Sequence[Plan]) -> None:
    """Refuse plans that can't come after what they name, which may be submitted with them. What has ended otherwise is
    refused too, since Slurm forgets a failed job within minutes, and then starts what was to come after it. Raises
    `UsageError`."""
    together = {plan.run_id for plan in plans}
    for after, plan in {plan.after: plan for plan in plans}.items():
        if outside := outside_of(after, together):
            for others in named(outside, Run(plan.run_root, plan.run_id)):
                _check_ended(outside, others)
                if plan.queue == "direct":
                    _check_here(outside, others.runs)


def outside_of(after: str | None, together: Collection[str]) -> str:
    """What of `after=` names other runs than those that are submitted with it, by their ids; empty for nothing."""
    if after is None:
        return ""
    items = zip(after.split(","), parse(after), strict=True)
    ours = f"{PLACEHOLDER}-"
    return ",".join(item for item, (_, name) in items if name not in together and not name.startswith(ours))


def _check_ended(after: str, others: Others) -> None:
    here = [run for run in others.runs if not run_roots.is_remote(run.root)]
    for row in backends.states_of(here) if others.kind == "ok" else ():
        if row.state.finished and row.state.name != "done":
            raise UsageError(
                f"after={after}: {row.run.id} has ended as {row.state.name}, so nothing can start after it; "
                f"`resume {row.run.id}` first, or say after=any:{others.name}"
            )


def _check_here(after: str, runs: Sequence[Run]) -> None:
    """Refuse runs whose processes this host can't see."""
    for run in runs:
        if run_roots.is_remote(run.root):
            raise UsageError(
                f"after={after}: {run.id} is on another host; a run can only come after one of its own host"
            )
        submission = store.read(Submission, run.folder / "submission.json")
        if submission.queue not in (None, "direct"):
            raise UsageError(f"after={after}: {run.id} is a job of Slurm; say cluster=slurm to come after it")
        host = submission.host or processes.host()
        if host != processes.host():
            raise UsageError(f"after={after}: {run.id} runs on {host}, which can't be seen from {processes.host()}")


def write(folder: Path, after: str) -> None:
    """Write `FILE` of a run."""
    of = Run(str(folder.parent), folder.name)
    lines = [f"{others.kind} {run.folder}\n" for others in named(after, of) for run in others.runs]
    store.write_text(folder / FILE, "".join(lines))
