"""Runs in Slurm: what Slurm knows of them, and how they are cancelled there."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from amp_launcher.shown import some
from launcher import safe_files
from launcher.errors import UsageError
from launcher.executors.slurm import jobs, shared
from launcher.executors.slurm.jobs import Row
from launcher.executors.slurm.shared import Answer
from launcher.executors.slurm.unanswered import jobs_of
from launcher.probe.slurm_commands import call, complaint
from launcher.runs import run_files, store
from launcher.runs.run_files import Files
from launcher.runs.schema import PlanRecord, Status
from launcher.runs.states import SILENT, Liveness, may_live, needs_liveness, status_of
from launcher.runs.states import judge as judge_files
from launcher.runs.store import Run

CLOCKS_DIFFER = 60.0
"""Seconds by which a file server's clock may be ahead of this machine's."""
# Without cgroups Slurm kills a job over its memory and calls it failed; only the log has the reason.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom.kill|out of memory", re.IGNORECASE)


def liveness(asked: Mapping[str, Files], after: float = 0.0) -> dict[str, Liveness]:
    """What Slurm says of each run; keys are folders. An answer older than `after`, seconds since 1970, is renewed."""
    states: dict[str, Liveness] = {}
    for conf, group in _by_cluster(asked).items():
        known, without = jobs_of(group, conf)
        states.update(without)
        # A final verdict is not asked for again once sacct has confirmed it, but a row of squeue overrides it.
        kept = {folder: row for folder, job in known.items() if (row := _kept(folder, job))}
        wanted = {job for folder, job in known.items() if folder not in kept or not kept[folder].exit}
        signalled = max((_signalled(folder, group[folder]) for folder in known), default=0.0)
        answer = shared.ask(wanted, conf, signalled=signalled, after=after) if known else Answer()
        for folder, job in known.items():
            states[folder] = _of_answer(folder, job, group[folder], answer, kept.get(folder))
    return states


def _by_cluster(asked: Mapping[str, Files]) -> dict[str | None, dict[str, Files]]:
    """The runs of each cluster, by the SLURM_CONF that they were submitted with."""
    groups: dict[str | None, dict[str, Files]] = {}
    for folder, files in asked.items():
        groups.setdefault(files.submitted.slurm_conf, {})[folder] = files
    return groups


def _of_answer(folder: str, job: str, files: Files, answer: Answer, kept: Row | None) -> Liveness:
    when = answer.asked or None
    if answer.error:
        return Liveness("unknown", answer.error, asked=when)
    row = answer.row(job, files.submitted.script)
    status = status_of(files)
    if status is not None and _is_newer(f"{folder}/status.json", answer.asked):
        # The job has started, or was put back into the queue, since Slurm was asked.
        return Liveness("alive", waits=status.state == "requeued", asked=when)
    # A controller that crashed may give an id twice: what sacct said of it before this submission is another job's.
    of_answer = answer.accounted[job][0] if job in answer.accounted else answer.asked
    submitted_since = job not in answer.held and (
        not answer.has(job) or _is_newer(str(files.submitted.answer), of_answer)
    )
    if submitted_since and kept is None:
        return Liveness("alive", "accepted this moment", asked=when)
    if row is None and kept is None and job in answer.unanswered:
        why = answer.accounts_error or "sacct has not answered yet"
        return Liveness(
            "unknown", f"squeue no longer lists job {job}, and how it ended is not known: {why}", asked=when
        )
    found = row or kept
    judged = judge(job, found, _log(files))._replace(asked=when)
    if status is None and found and (judged.waits or judged.outcome == "cancelled"):
        judged = _of_dependent(folder, judged, found.reason)
    if found and found.exit and judged.outcome == "failed" and not judged.reason:
        judged = _of_plain_failure(judged, job, found, status)
    if judged.life == "gone" and row is not None and needs_liveness(files):
        _keep(folder, job, row)
    return judged


def _of_plain_failure(judged: Liveness, job: str, row: Row, status: Status | None) -> Liveness:
    """With the exit code or the signal of the job's script, unless its own files have the reason."""
    if status is not None and status.state == "interrupted":
        return judged
    how = f"{jobs.verdict(row)} (job {job})"
    return judged._replace(reason=how if status is not None else f"{SILENT}; {how}")


def _of_dependent(folder: str, judged: Liveness, reason: str) -> Liveness:
    """Of a job that waits for others by `after=`, or that Slurm cancelled because one failed: with their names."""
    after = store.read(PlanRecord, f"{folder}/plan.json", ("after",)).after
    if not after or (judged.waits and not reason.startswith("Dependency")):
        return judged
    from launcher.executors import dependency  # and the types of plans, which a listing does without

    try:
        others = dependency.named(after, Run(*os.path.split(folder)))
    except UsageError:
        name = after.rpartition(":")[2]
        return judged._replace(reason=f"{judged.reason}; it was to come after {name}, of which nothing is known here")
    first = [(run, other.kind) for other in others for run in other.runs]
    if judged.waits:
        still = [run.id for run, _ in first if not judge_files(run_files.load(run.path), None).finished]
        waited = still or [run.id for run, _ in first]  # Slurm may not have seen the end yet
        return judged._replace(reason=f"waiting for {some(waited)}, which it comes after")
    ends = [f"{run.id}, which {how}" for run, kind in first if kind == "ok" and (how := _ended_badly(run.folder))]
    if not ends:
        return judged
    return judged._replace(reason=f"it never started: it was to come after {some(ends)}")


def _ended_badly(folder: Path) -> str:
    """How a run ended, if not well; empty if it did."""
    state = judge_files(run_files.load(str(folder)), None).name
    return {"done": "", "failed": "failed", "unreachable": "left no status"}.get(state, f"is {state}")


def _is_newer(path: str, asked: float) -> bool:
    """Whether a file was written since Slurm was asked. A time far in the future comes from a wrong clock."""
    return asked < safe_files.changed(path) < time.time() + CLOCKS_DIFFER


def _signalled(folder: str, files: Files) -> float:
    """When a run's folder said that its job was interrupted, in seconds since 1970: an answer of Slurm has to be
    younger. 0 if it does not say that."""
    status = status_of(files)
    if status is None or status.state != "interrupted":
        return 0.0
    signalled = safe_files.changed(f"{folder}/status.json")
    return signalled if signalled < time.time() else 0.0


def judge(job: str, row: Row | None, log: str = "") -> Liveness:
    """The liveness of a run that its folder calls unfinished, by its row of Slurm; `log` is what Slurm wrote itself."""
    if row is None:
        return Liveness("gone", f"Slurm no longer knows job {job}")
    if row.state in jobs.WAITING:
        return Liveness("alive", jobs.waits_for(row), waits=True)
    if row.state in jobs.SUSPENDED:
        return Liveness("alive", jobs.SUSPENDED_BY, suspended=True)
    if row.state in jobs.ACTIVE:
        return Liveness("alive")
    if row.state == "CANCELLED":
        return Liveness("gone", f"{jobs.verdict(row)} (job {job})", "cancelled")
    if row.state != "OUT_OF_MEMORY" and _OVER_MEMORY.search(log):
        row = row._replace(state="OUT_OF_MEMORY")
    if row.state == "COMPLETED":
        return Liveness("gone", f"job {job} ended")
    # The reason of a plain failure is in the run's own files.
    reason = "" if row.state == "FAILED" else f"{jobs.verdict(row)} (job {job})"
    return Liveness("gone", reason, "failed")


def end(asked: Mapping[str, Files], grace: float) -> dict[str, str]:
    """Cancel the jobs of the runs in Slurm, which gives them KillWait seconds between TERM and KILL."""
    failed: dict[str, str] = {}
    for conf, group in _by_cluster(asked).items():
        names, without = jobs_of(group, conf)
        known = sorted(names.values())
        failed |= {folder: f"nobody knows its job: {why.reason}" for folder, why in without.items()}
        for start in range(0, len(known), 500):
            done = call(["scancel", "--quiet", *known[start : start + 500]], conf=conf)
            shared.changed(conf)
            if done.returncode != 0:
                why = f"scancel failed: {complaint(done)}"
                failed |= {folder: why for folder, job in names.items() if job in known[start : start + 500]}
    return failed


def with_processes(asked: Mapping[str, Files]) -> set[str]:
    """Runs that have a live job in Slurm. One that has recorded its end has none."""
    unfinished = {folder: files for folder, files in asked.items() if may_live(files)}
    return {folder for folder, known in liveness(unfinished).items() if known.life == "alive"}


def _log(files: Files) -> str:
    """The end of what Slurm wrote into the job's own log."""
    log = files.submitted.log
    if log is None:
        return ""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _keep(folder: str, job: str, row: Row) -> None:
    """Keep Slurm's verdict in the run folder before Slurm forgets it."""
    path = Path(folder, store.VERDICT)
    verdict = {"schema": 1, "job": job, **row._replace(script="")._asdict()}
    if Path(folder).is_dir() and store.read_or_empty(path) != verdict:
        with contextlib.suppress(OSError):  # a disk that is full, or another person's
            store.write_json(path, verdict)


def _kept(folder: str, job: str) -> Row | None:
    """The verdict that was kept of this job."""
    kept = store.read_or_empty(Path(folder, store.VERDICT))
    is_complete = kept.get("job") == job and {"state", "reason"} <= kept.keys()
    return Row(**{name: str(kept.get(name, "")) for name in Row._fields}) if is_complete else None
