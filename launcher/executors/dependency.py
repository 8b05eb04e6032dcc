"""`after=` without a scheduler: which runs it names. The run's own script waits for them."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import ownership, processes, run_roots, selection, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run

FILE = "after"
"""Of a run's folder until it may start: how the others have to end, `ok` or `any`, then their folders, a line each."""


def parse(after: str) -> tuple[str, str]:
    """How the other run has to end, `ok` or `any`, and its name. Raises `UsageError`."""
    kind, _, name = after.rpartition(":")
    if kind not in ("", "ok", "any") or not name:
        raise UsageError(f"after={after}: say after=RUN, once it is done, or after=any:RUN, however it ends")
    return kind or "ok", name


def named(after: str) -> tuple[str, tuple[Run, ...]]:
    """How the runs have to end, and which they are. Raises `UsageError` if there is none, it is another user's, or it
    has ended otherwise: Slurm forgets a failed job within minutes, and then starts what was to come after it."""
    kind, name = parse(after)
    runs = selection.find(name, run_roots.named(None)).runs
    ownership.refuse_anothers(f"after={after}", runs)
    here = [run for run in runs if not run_roots.is_remote(run.root)]
    for row in backends.look(here) if kind == "ok" else ():
        if row.state.finished and row.state.name != "done":
            raise UsageError(
                f"after={after}: {row.run.id} has ended as {row.state.name}, so nothing can start after it; "
                f"`resume {row.run.id}` first, or say after=any:{name}"
            )
    return kind, runs


def check(after: str) -> tuple[str, tuple[Run, ...]]:
    """The same, for runs whose processes this host can see. Raises `UsageError`."""
    kind, runs = named(after)
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
    return kind, runs


def write(folder: Path, after: str) -> None:
    """Write the runs that a run's script waits for into its folder."""
    kind, runs = check(after)
    store.write_text(folder / FILE, "".join(f"{line}\n" for line in (kind, *(str(run.folder) for run in runs))))
