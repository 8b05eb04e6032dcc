"""Submission to Slurm: one sbatch for a run, one job array for each shape of resources of a sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import launcher
from amp_launcher import records
from launcher.containers.words import to_bash
from launcher.errors import LauncherError, Unavailable, UsageError
from launcher.executors import dependency, interrupts
from launcher.executors.local.start import next_attempt, record_submission
from launcher.executors.slurm import shared, unanswered
from launcher.executors.slurm.jobs import SUBMITS, job_in, job_of
from launcher.plan.model import Plan
from launcher.probe import slurm_probing
from launcher.probe.slurm_commands import call, complaint, environment
from launcher.runs import ownership, processes, run_ids, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run
from launcher.script import render
from launcher.script.slurm_header import header, shape

SAY_AFTER = 5.0
"""Seconds without an answer after which a message says so: a full controller makes sbatch retry."""
GIVE_UP_AFTER = 300.0
_ABOUT = (("feature", "constraint"), ("reservation", "reservation"), ("account", "account"), ("qos", "qos"))
"""Words of Slurm's complaints, and the keys of `cluster` that they are about."""
_NO_ANSWER = re.compile(r"timed out|send/recv|zero bytes|connection reset|broken pipe", re.IGNORECASE)
"""What sbatch says if the controller may have got the job and did not answer."""
_NO_NODES = "Requested node configuration is not available"
"""What `sbatch --test-only` says if no nodes have what a job asks for, or those that have are not up."""


def start(folders: Sequence[Path], planned: Sequence[Plan]) -> None:
    """Submit prepared run folders: one job for a run, else an array for each shape of resources, chunked by the
    cluster's MaxArraySize; an array's largest index is one less."""
    # What can fail comes before a job is submitted that fetches the image: nobody would take that back.
    after = after_jobs(planned[0])
    largest = slurm_probing.max_array_size() if len(folders) > 1 else 1
    image = planned[0].container
    if image and image.pull and not Path(image.image).exists():  # it may have come since the plan was made
        after = [f"afterok:{_pull(folders[0], planned[0])}", *after]
    if len(folders) == 1:
        (folder,) = folders
        answer = folder / f"sbatch.{len(list(folder.glob('sbatch.*.out'))) + 1}.out"
        _submit({folder: str(folder / "launch.log")}, False, folder / "run.sh", answer, after)
        return
    shapes: dict[tuple[str, ...], list[tuple[Path, Plan]]] = {}
    for folder, plan in zip(folders, planned, strict=True):
        shapes.setdefault(shape(plan), []).append((folder, plan))
    arrays = [runs[at : at + largest] for runs in shapes.values() for at in range(0, len(runs), largest)]
    if len(arrays) > 1 and (parallel := planned[0].cluster["parallel"]):
        print(f"note: the sweep is {len(arrays)} job arrays; cluster.parallel={parallel} limits each", file=sys.stderr)
    for number, runs in enumerate(arrays):
        _submit_array(number, runs, after)


def _pull(folder: Path, plan: Plan) -> str:
    """Submit the job that fetches the image of these runs, on a compute node. Returns its id."""
    path = folder / "pull.sh"
    store.write_text(path, image_script(plan, log=str(folder / "pull.log")), records.record)
    return sbatch(["sbatch", "--parsable", str(path)], folder / "pull.out")


def image_script(plan: Plan, *, log: str) -> str:
    """What is submitted: `image pull` by the launcher that plans, whose Python and folder the nodes have to see."""
    chosen = plan.container
    assert chosen is not None
    alone = dataclasses.replace(plan, name="image-pull", nodes=1, gpus=0)
    argv = [sys.executable, "-m", "launcher", "image", "pull", chosen.pull]
    argv += [f"container={chosen.runtime.kind}", f"container.cache={Path(chosen.image).parent}"]
    lines = [
        "#!/usr/bin/env bash",
        *header(alone, log=log),
        f"# Fetches {chosen.asked} for run {plan.run_id}, and for whoever asks next.",
        *render.host_exports(plan),
        f"export PYTHONPATH={to_bash(str(Path(launcher.__file__).parents[1]))}",
        "exec " + " ".join(map(to_bash, argv)),
    ]
    return "\n".join(lines) + "\n"


def _submit_array(number: int, runs: Sequence[tuple[Path, Plan]], after: Sequence[str]) -> None:
    folders, planned = [folder for folder, _ in runs], [plan for _, plan in runs]
    root, sweep = folders[0].parent, run_ids.sweep_of(folders[0].name) or folders[0].name
    place = root / store.SWEEPS / sweep
    store.make_common(place.parent)
    with contextlib.suppress(FileExistsError):
        store.make_folder(place, shared=planned[0].shared is not None)
    ownership.refuse_other_users("submit", [(str(place.parent), place.name)])
    stem = f"{int(time.time())}-{number}"  # a resumed sweep makes new arrays beside the old ones
    listing, text = place / f"{stem}.folders", place / f"{stem}.sh"
    answer = place / f"{stem}.out"
    store.write_text(listing, "".join(f"{folder}\n" for folder in folders), records.record)
    parallel = planned[0].cluster["parallel"]
    log = str(place / f"{stem}.%a.log")
    store.write_text(text, render.array(planned, log=log, folders=str(listing), parallel=parallel), records.record)
    logs = {folder: str(place / f"{stem}.{index}.log") for index, folder in enumerate(folders)}
    _submit(logs, True, text, answer, after)


def _submit(logs: Mapping[Path, str], is_array: bool, script: Path, answer: Path, after: Sequence[str]) -> None:
    """Submit the runs, each with what Slurm writes itself, after other jobs. First is recorded what finds the job again
    even if its launcher or sbatch is killed before the answer is written."""
    for number, (folder, log) in enumerate(logs.items()):
        record_submission(
            folder,
            queue="slurm",
            first_attempt=next_attempt(folder),
            array_index=number if is_array else None,
            log=log,
            script=str(script),
            answer=str(answer),
            slurm_conf=os.environ.get("SLURM_CONF"),
            process=processes.to_json(processes.identity(os.getpid())),
        )
    options = [f"--dependency={','.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
    sbatch(["sbatch", "--parsable", *options, str(script)], answer)


def sbatch(argv: Sequence[str], answer: Path) -> str:
    """Submit, with sbatch in a session of its own writing its answer into a file: so the job's id outlives a launcher
    that is killed meanwhile. Returns the job's id. Raises `UsageError` with Slurm's reason if it refuses, and
    `Unavailable` if it may have accepted the job."""
    complaints, (ended, held) = answer.with_suffix(".err"), os.pipe()
    with open(ended, "rb") as end:
        with (
            open(held, "wb"),
            open(answer, "wb", opener=records.record) as out,
            open(complaints, "wb", opener=records.record) as err,
        ):
            shared_by_group = os.fstat(out.fileno()).st_mode & stat.S_IRGRP
            started = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd="/",
                env={**environment(), SUBMITS: str(answer)},
                umask=0o027 if shared_by_group else 0o077,  # Slurm opens the job's own log with it
                pass_fds=[held],
            )
        code = _awaited(started, end, answer)
    text = complaints.read_text(errors="replace")
    if code != 0:
        why = complaint(subprocess.CompletedProcess(argv, code, "", text))
        if not _NO_ANSWER.search(why):
            answer.with_suffix(".failed").touch(mode=0o600)
            raise UsageError(f"Slurm refused the job: {why}")
        shared.changed()
        if not unanswered.found(argv[-1], answer, shared.ask((), None, after=time.time())):
            raise Unavailable(f"it is not known whether Slurm accepted the job: sbatch had no answer: {why}")
    if text.strip():
        print(f"sbatch: {text.strip()}", file=sys.stderr)
    complaints.unlink()
    shared.changed()
    text = answer.read_text(encoding="utf-8")
    if (job := job_in(text, Submission())) is None:
        raise LauncherError(f"sbatch answered {text!r}, in which no job is named")
    return job


def _awaited(started: subprocess.Popen[bytes], end: BinaryIO, answer: Path) -> int:
    """The exit code of sbatch, which holds the other end of a pipe. Raises `LauncherError` where it takes too long."""
    began, announced, ended = time.monotonic(), False, select.poll()
    ended.register(end)
    while (code := started.poll()) is None:
        if ended.poll(1000):
            with contextlib.suppress(subprocess.TimeoutExpired):  # a site's own sbatch may close what it doesn't know
                return started.wait(1.0)
        interrupts.raise_noted()  # sbatch continues, and its answer names the job
        waited = time.monotonic() - began
        if waited > SAY_AFTER and not announced:
            announced = True
            print(f"sbatch has not answered for {waited:.0f} s; it is still trying", file=sys.stderr)
        if waited > GIVE_UP_AFTER:
            raise LauncherError(
                f"sbatch has not answered in {waited:.0f} s and is left to itself (process {started.pid}); "
                f"its answer will be in {answer}"
            )
    return code


def test_only(planned: Sequence[Plan]) -> None:
    """Validate the jobs with `sbatch --test-only`, one of each shape of resources. Raises `UsageError`."""
    together = {plan.run_id for plan in planned}
    for plan in planned:
        after_jobs(plan, together)
    plans = {shape(plan): plan for plan in planned}.values()
    for plan in plans:
        done = call(["sbatch", "--test-only"], text=render.render(plan))
        if done.returncode == 0:
            continue
        away = slurm_probing.nodes_away(plan.cluster["partition"]) if _NO_NODES in (why := complaint(done)) else []
        if not away or len(plans) > 1:  # of several arrays sbatch could queue the first and refuse the second
            wrong = [
                f" (cluster.{key}={plan.cluster[key]})" for word, key in _ABOUT if word in why and plan.cluster[key]
            ]
            raise UsageError(f"Slurm would refuse this job: {why}{''.join(wrong)}")
        # Unlike this check, sbatch queues a job until such nodes are back, and refuses what the cluster never has.
        print(
            f"note: Slurm says: {why}; of {plan.cluster['partition'] or 'the default partition'}, {', '.join(away)}: "
            "the job waits in the queue if such nodes have what it asks for",
            file=sys.stderr,
        )


def after_jobs(plan: Plan, together: Collection[str] = ()) -> list[str]:
    """The jobs of the runs of `after=`, as sbatch's `--dependency` names them; those of runs that are submitted
    `together` with it are not there yet. Raises `UsageError` for a run that has no job."""
    after = dependency.outside_of(plan.after, together)
    named = []
    for others in dependency.named(after, Run(plan.run_root, plan.run_id)) if after else ():
        jobs = [job_of(store.read(Submission, run.folder / "submission.json")) for run in others.runs]
        if not jobs or None in jobs:
            raise UsageError(f"after={plan.after}: {others.name} is not a run of Slurm")
        named.append(f"{'afterany' if others.kind == 'any' else 'afterok'}:{':'.join(map(str, jobs))}")
    return named
