"""`chain`: jobs that need each other, from one file."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.commands import VERBS, cmd
from launcher.compare import experiments
from launcher.compare.last_words import last_words
from launcher.config import chain, request
from launcher.config.chain import ANY, Job
from launcher.config.request import Words
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, UsageError, of_program
from launcher.executors import dependency, planning
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.plan.plan_summary import summary
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.runs import address as addresses
from launcher.runs import run_ids
from launcher.ssh.probe_client import probe_each
from launcher.ui.foreground import submit_and_follow
from launcher.ui.tables import Column, lines, width_of

HELP = """\
Start the jobs of a file, each once those that it needs are done.

usage: python -m launcher chain FILE.yaml [key=value ...] [--plan] [--config-dir DIR]

The file has the jobs by name: words as one would type them here, from a script, `cmd` or a key on, and needs.

  prepare:
    words: cmd gpus=0 -- ./prepare.sh data/
  train:
    needs: prepare
    words: train.py amp=o2 gpus=1 -- --data data/
  evaluate:
    needs: train               # a list for several; any:train starts it however train ends
    words: evaluate.py amp=none

A job that can't start any more, since one that it needs failed, is cancelled and says so. What is wrong in any job is
refused before one is started. A job's name is the run's name: `logs evaluate`.

  --plan   show what would be started

keys are those of `run`; `python -m launcher run --help` lists them.
"""


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, own=("plan",))
    path, typed = _file(words)
    jobs = chain.read(path)
    specs = [_spec(job, jobs, typed) for job in jobs]
    if key := request.differing_place(specs):
        raise UsageError(
            f"{path}: {key} differs between jobs, and a chain goes to one place; say it once, behind {path}"
        )
    facts = _facts(jobs, specs)
    command = ("chain", str(path), *typed.overrides)
    plans = [dataclasses.replace(_plan(*each), command=command) for each in zip(jobs, specs, facts, strict=True)]
    if words.plan:
        columns = [
            Column("JOB", [job.name for job in jobs]),
            Column("NEEDS", [", ".join(job.needs) or "-" for job in jobs]),
            Column("WHAT", list(map(summary, plans))),
        ]
        print("\n".join(lines(columns, width_of(sys.stdout))))
        return 0
    planning.say_advice(plans)
    return submit_and_follow(plans, facts[0], specs, last_words)


def _file(words: Words) -> tuple[Path, Words]:
    """The chain's file, and the words that are for each of its jobs. Raises `UsageError`."""
    names = [word for word in words.overrides if "=" not in word and not word.startswith(("~", "env.", "secrets."))]
    if len(names) != 1 or words.arguments is not None:
        raise UsageError(
            "chain takes one file of jobs: python -m launcher chain FILE.yaml [key=value ...]; `chain --help` shows one"
        )
    rest = tuple(word for word in words.overrides if word != names[0])
    return Path(names[0]).expanduser(), dataclasses.replace(words, overrides=rest)


@contextlib.contextmanager
def _at(job: Job) -> Iterator[None]:
    """Errors with the place of the job's words."""
    try:
        yield
    except LauncherError as error:
        text = str(error)
        if job.place not in text:
            text = f"{job.place}: {text}"
        raise type(error)(f"{text} (job {job.name}; nothing was started)") from None


def _spec(job: Job, jobs: Sequence[Job], typed: Words) -> JobSpec:
    with _at(job):
        with of_program():
            own = _own_words(job)
        named = any(word.startswith("name=") for word in own.overrides)
        overrides = (*own.overrides, *(() if named else (f"name={job.name}",)))
        words = dataclasses.replace(
            own,
            overrides=(*overrides, *typed.overrides),
            config_dirs=tuple(dict.fromkeys([*typed.config_dirs, *own.config_dirs])),
            sources=dict.fromkeys(overrides, job.place),
        )
        if experiments.requested(words) is not None:
            raise UsageError("a comparison is no job of a chain")
        spec = request.to_spec(words, "a job of a chain is one run")
    ids = {other.name: run_ids.cell_id(PLACEHOLDER, index, len(jobs)) for index, other in enumerate(jobs)}
    needed = [f"{ANY if need.startswith(ANY) else ''}{ids[need.removeprefix(ANY)]}" for need in job.needs]
    launch = dataclasses.replace(
        spec.launch,
        after=",".join(filter(None, (spec.launch.after, *needed))) or None,
        # The first job is refused where the GPUs are taken; others come later, and wait for them.
        wait_gpus=spec.launch.wait_gpus or job is not jobs[0],
    )
    return dataclasses.replace(spec, launch=launch, job=job.name)


def _own_words(job: Job) -> Words:
    verb, *rest = job.words
    if verb == "cmd":
        words = cmd.words(rest)
    elif verb in VERBS and verb != "run":
        raise UsageError(f"{verb} starts no job: the words of a job begin with a script, cmd or key=value")
    else:
        words = list(rest if verb == "run" else job.words)
    own = request.split_flags(words, starts=True)
    if own.help or own.cfg:
        raise UsageError("--help and --cfg start no job")
    return own


def _facts(jobs: Sequence[Job], specs: Sequence[JobSpec]) -> list[Facts]:
    try:
        return probe_each(specs)
    except LauncherError:
        for job, spec in zip(jobs, specs, strict=True):  # whose it is, as a script that is missing
            with _at(job):
                probe_each([spec])
        raise


def _plan(job: Job, spec: JobSpec, facts: Facts) -> Plan:
    with _at(job):
        plan = resolve(spec, facts)
        if addresses.of(spec.launch.cluster) is None:  # else that host checks it
            dependency.check_after([plan])
        return plan
