"""What the launcher adds to Slurm, on the real one of the testbed (`make testbed`), against its peers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import listing, places
from benchmarks.measure import Measured, by_turns, command
from benchmarks.peers import hydra_submitit
from benchmarks.places import PEERS, PYTHON, environment, launcher

NAME = f"benchmark-{os.getpid()}"
"""Name of all jobs submitted here, to cancel them together."""
FEW, MANY = 1_000, 10_000
"""Cells of the sweeps whose costs are compared."""
HELD = "cluster.flags=[--hold]"
"""The jobs never start: only their submission is measured."""


def submit(folder: Path) -> Measured:
    with testbed() as variables:
        environ = environment(folder, **variables)
        script = folder / "job.sh"
        script.write_text("#!/bin/bash\ntrue\n", encoding="utf-8")
        python = hydra_submitit.python()
        peer = hydra_submitit.Sweep(folder / "peer", environ, NAME)
        cases = {
            "python -m launcher cluster=slurm": command(_submission(folder / "runs"), folder, environ),
            "hydra-submitit-launcher, until its sbatch returned": lambda: peer.until_accepted("amp=o1"),
            "plain submitit": command([python, str(PEERS / "plain_submitit.py"), NAME], folder, environ),
            "bare sbatch": command(["sbatch", "--hold", f"--job-name={NAME}", str(script)], folder, environ),
        }
        timings = by_turns(cases, rounds=15)
    return Measured(
        claim="one submission, typed to accepted, in at most 0.7 of hydra-submitit-launcher's time",
        limit=0.7,
        timings=timings,
        note="ours is the whole command, until the prompt is back",
    )


def sweep(folder: Path) -> Measured:
    words = ["amp=o0,o1", "{}seed=range(250)"]
    with testbed() as variables:
        environ = environment(folder, **variables)
        peer = hydra_submitit.Sweep(folder / "peer", environ, NAME)
        typed, forced = ([word.format(prefix) for word in words] for prefix in ("", "++"))
        cases = {
            "a sweep of 500 cells": command([*_submission(folder / "runs"), *typed], folder, environ),
            "hydra-submitit-launcher's, until its sbatch returned": lambda: peer.until_accepted(*forced),
        }
        timings = by_turns(cases, rounds=3)
    return Measured(
        claim="a sweep of 500 cells accepted at least 15 times faster than hydra-submitit-launcher's",
        limit=1 / 15,
        timings=timings,
        note="ours is the whole command, until the prompt is back",
    )


def cells(folder: Path, verb: str) -> Measured:
    """What a cell of a large sweep costs beside one of a small sweep: 1.0 where the cost is linear."""
    with testbed() as variables:
        environ = environment(folder, **variables)
        cases = {f"{verb} of {count:,} cells, for each": _each(folder, environ, verb, count) for count in (MANY, FEW)}
        timings = by_turns(cases, rounds=1, warm_up=0)
    return Measured(
        claim=f"`{verb}` costs no more for each of {MANY:,} cells than 1.2 times what it costs for each of {FEW:,}",
        limit=1.2,
        timings=timings,
        note="the start of the program is in both",
    )


def _each(folder: Path, environ: dict[str, str], verb: str, count: int) -> Callable[[], float]:
    """A case: the seconds that a verb takes for each cell of a sweep, which is submitted first."""
    root = folder / f"cells-{count}"
    submission = [*_submission(root), f"seed=range({count})"]
    if verb == "submit":
        return lambda: command(submission, folder, environ)() / count
    if verb == "plan":
        return lambda: command(launcher("plan", *submission[3:]), folder, environ)() / count

    def run() -> float:
        done = subprocess.run(submission, cwd=folder, env=environ, capture_output=True, text=True, check=True)
        sweep = done.stdout.split()[0].rpartition("-")[0]
        words = {
            "ls": ["ls", "--all"],
            "ls-sweep": ["ls", sweep],
            "cancel": ["cancel", sweep],
            "rm": ["rm", "--now", "--yes", sweep],
        }[verb]
        if verb == "rm":
            command(launcher("cancel", sweep, f"run_root={root}"), folder, environ)()
        return command(launcher(*words, f"run_root={root}"), folder, environ)() / count

    return run


def start(folder: Path) -> Measured:
    with testbed() as variables:
        environ = environment(folder, **variables)
        program = folder / "python"
        program.write_text(_TRAINER.format(python=PYTHON), encoding="utf-8")
        program.chmod(0o700)
        srun = ["srun", "--quiet", f"--job-name={NAME}", PYTHON, "-c", "pass"]
        cases = {
            "job start to the trainer's first line": _first_line(folder, program, environ),
            "srun python -c pass": command(srun, folder, environ),
        }
        timings = by_turns(cases, rounds=15)
    return Measured(
        claim="job start to the trainer's first line at most 1.5 times a bare `srun python -c pass`",
        limit=1.5,
        timings=timings,
        note="the trainer is a Python that prints; ours is counted from the start of Slurm's own process for the job",
    )


def ls(folder: Path) -> Measured:
    queued, done = 1000, 10_000
    with testbed() as variables:
        environ = environment(folder, **variables)
        listing.finished(folder / "many", done)
        listing.finished(folder / "few", 10)
        for root, cells in (("many", queued), ("queued", 10)):
            command([*_submission(folder / root), f"seed=range({cells})"], folder, environ)()
        names = {
            "many": f"ls of {queued:,} queued among {done:,} finished",
            "few": "ls of 10 finished",
            "queued": "ls of 10 queued",
        }
        cases = {
            **{
                name: command(launcher("ls", f"run_root={folder / root}"), folder, environ)
                for root, name in names.items()
            },
            "squeue": command(["squeue", "--me", "--array", "--noheader"], folder, environ),
        }
        timings = by_turns(cases, rounds=15)
    return Measured(
        claim="`ls` over 1,000 queued runs among 10,000 finished ones at most 4 times its time over ten",
        limit=4.0,
        timings=timings,
    )


@contextmanager
def testbed() -> Iterator[dict[str, str]]:
    """The variables that find the testbed's Slurm; what was submitted is cancelled at the end. Raises `Skipped`."""
    variables = places.testbed("slurm")["environment"]
    try:
        yield variables
    finally:
        subprocess.run(["scancel", "--quiet", f"--name={NAME}"], env={**os.environ, **variables}, check=False)


def _submission(root: Path) -> list[str]:
    return launcher("cluster=slurm", "gpus=0", f"name={NAME}", f"run_root={root}", HELD)


def _first_line(folder: Path, program: Path, environ: dict[str, str]) -> Callable[[], float]:
    """A case: submit a run of the program and read the seconds that it prints."""
    argv = launcher("cluster=slurm", "gpus=0", f"name={NAME}", f"run_root={folder / 'runs'}", f"python={program}")

    def run() -> float:
        done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the submission failed: {done.stderr}")
        log = folder / "runs" / done.stdout.strip() / "attempts/1/stdout.log"
        deadline = time.monotonic() + 120
        while not (log.exists() and log.read_text().endswith("\n")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{log} has no line after two minutes")
            time.sleep(0.05)
        return float(log.read_text())

    return run


_TRAINER = """#!{python}
import os, sys, time
if sys.argv[1] == "-c":  # the launcher asks which version this is
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
pid, name = os.getpid(), ""
while name != "slurmstepd":
    stat = open(f"/proc/{{pid}}/stat").read()
    name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    pid = int(fields[1])
print(time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"), flush=True)
"""
