"""`up`: an interactive container or allocation, which waits under a name until `down` ends it."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.commands import cmd
from launcher.config import request, script_word
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.executors import backends, interrupts, planning, stopping
from launcher.plan.model import Plan
from launcher.probe.facts import Facts
from launcher.runs import run_roots
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ui import foreground, summary

HELP = """\
Start an interactive container, or an allocation, and keep it until `down` ends it.

usage: python -m launcher up [key=value ...]

It returns once the container runs; Ctrl-C before that cancels it, and detach=true returns at once. `ls` says how
long each has been idle and what it has cost. Without cluster.time= it ends by itself after 8 hours here and over SSH,
and after the partition's own limit under Slurm.

keys are those of `run`; `python -m launcher run --help` lists them.
"""

LIMIT = "8:00:00"
"""Of one for which nobody set a time limit, where no scheduler has one."""
_EVERY = 0.5
"""Seconds between two looks at a run that waits to start."""
_WAITING = """\
#!/bin/sh
# Keeps a container or an allocation until it is asked to end.
trap 'kill "$!"; exit 0' TERM
echo up
while :; do
  sleep 86400 &
  wait "$!"
done
"""


def main(arguments: Sequence[str]) -> int:
    stray = next((word for word in arguments if word == "--" or script_word.is_script(word)), None)
    if stray is not None:
        what = "a command" if stray == "--" else stray
        raise UsageError(
            f"up starts no script and no command, and was given {what}: `run` and `cmd` start those, and "
            "`shell RUN -- COMMAND` runs one in what is up"
        )
    with tempfile.TemporaryDirectory(prefix="launcher-up-") as folder:
        file = Path(folder, "up")  # the code that goes along is this alone
        file.write_text(_WAITING)
        file.chmod(0o700)
        words = request.split_flags([*cmd.KEYS, f"script={file}", *arguments], starts=True)
        spec = _limited(request.to_spec(words, "up starts one container or allocation"))
        (plan,), (facts,) = planning.plan_each([spec])
        own = tuple(word for word in plan.words if word not in cmd.KEYS and not word.startswith("script="))
        run = _submit(dataclasses.replace(plan, up=True, words=own, command=("up", *arguments)), facts, spec)
    if run is None:
        return 130
    return foreground.leave([run.folder]) if spec.launch.detach else _wait(run)


def _limited(spec: JobSpec) -> JobSpec:
    cluster = spec.launch.cluster
    if cluster.time is not None or cluster.kind == "slurm":
        return spec
    cluster = dataclasses.replace(cluster, time=LIMIT)
    return dataclasses.replace(spec, launch=dataclasses.replace(spec.launch, cluster=cluster))


def _submit(plan: Plan, facts: Facts, spec: JobSpec) -> Run | None:
    """Submit it and print its name; None where that was interrupted, and it was taken back."""
    from launcher.executors.base import submit

    with interrupts.held():
        try:
            (folder,) = submit([plan], [spec], facts)
        except interrupts.HandedOver as interrupted:
            (folder,) = interrupted.folders
            print(f"{folder.name} may have been started or not; `down {folder.name}` ends it", file=sys.stderr)
            return None
        run = Run(str(folder.parent), folder.name)
        print(run.id, flush=True)
        if interrupts.noted():
            _take_back(run)
            return None
    return run


def _wait(run: Run) -> int:
    """Wait until it runs, and say what it waits for."""
    said = ""
    try:
        while True:
            (seen,) = backends.states_of([run])
            if seen.state.finished:
                backends.settle([seen])
                print(summary.headline(seen.state, time.time()), file=sys.stderr)
                print(f"`logs {run.id}` has what it printed", file=sys.stderr)
                return 1
            if seen.state.name == "running" and _has_begun(seen):
                print(f"up; a terminal in it: python -m launcher shell {run.id}", file=sys.stderr)
                return 0
            text = ": ".join(filter(None, (seen.state.name, seen.state.reason)))
            if text != said:
                print(f"{text}; Ctrl-C cancels it", file=sys.stderr)
            said = text
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        _take_back(run)
        return 130


def _has_begun(seen: Seen) -> bool:
    """Whether its command runs, as its output shows: its script says `running` before it starts a container. The output
    on another host is not asked for."""
    log = seen.run.folder / "attempts" / str(seen.state.attempt) / "stdout.log"
    return run_roots.is_remote(seen.run.root) or (log.is_file() and log.stat().st_size > 0)


def _take_back(run: Run) -> None:
    (ended,) = stopping.cancel([run], now=True)
    print(f"\n{ended.why_not or summary.headline(ended.seen.state, time.time())}", file=sys.stderr)
