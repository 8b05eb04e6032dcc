"""The real trainer on the testbed's Slurm, what is done to it, and whether it ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.code.job_files import code_files
from launcher.commands import resume
from launcher.executors.slurm.jobs import listed
from launcher.executors.slurm.shared import Answer
from launcher.executors.submission import submit
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe.slurm_commands import call
from launcher.runs import selection, store
from launcher.ssh.probe_client import probe
from tests.amp_launcher.torch import trainers
from tests.launcher import warm
from tests.launcher.hosts import spec_of
from tests.launcher.run_folders import end_all
from tests.launcher.slurm.bench import GPU, job_of, state, until
from tests.testbed.facts import Testbed

STEPS = 24
EVERY = 4
JOB = ("amp=o2", "data=digits", "batch=32", f"steps={STEPS}", f"checkpoint.every={EVERY}", "checkpoint.keep=3")
PACED = Path(__file__).with_name("paced")
PLAIN = Path(__file__).with_name("plain_trainer.py")
LONG = 180.0
"""Seconds after which something that should happen on two busy cores won't."""


LATER = '[ "$LAUNCHER_ATTEMPT" = 1 ] || PACE=0 PACE_SAVE=0'
"""Of the setup: only the first attempt takes its time."""
WITH_PACE = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{PACED}"'
WITH_PLAIN = f'[ "$1 $2" != "-m amp_launcher.recipes.mnist.train_torch" ] || {{ shift 2; set -- {PLAIN} "$@"; }}'


def python(folder: Path, before: str = WITH_PACE, real: str | Path = sys.executable) -> Path:
    """A Python that slows torch's steps down as PACE says, or runs the plain trainer in place of that in torch."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{before}\nexec {real} "$@"\n')
    path.chmod(0o700)
    return path


def then_warm(folder: Path, before: str = WITH_PACE) -> Path:
    """The same, whose first attempt is of the real Python, with processes that a test finds and ends, and later ones of
    the warm one."""
    return python(folder, f'{before}\n[ "$LAUNCHER_ATTEMPT" = 1 ] || exec {warm.python()} "$@"')


class Trainers:
    """Submits trainers of one job, whose undisturbed run is in the folder `whole`: `plain` ones, or those in torch."""

    one_at_a_time = threading.Lock()
    """Held by whoever submits: each launcher is a process of its own elsewhere."""

    def __init__(self, tmp_path: Path, whole: Path, *words: str, plain: bool = False) -> None:
        self.root, self.whole, self.words = tmp_path / "runs", whole, words
        self.python = python(tmp_path, WITH_PLAIN) if plain else python(tmp_path)
        self.jobs: set[str] = set()

    def plan(self, *words: str, pace: float = 1.0, save: float = 0.0, root: Path | None = None) -> Plan:
        """A trainer whose steps take at least `pace` seconds in its first attempt, and its checkpoints `save` more."""
        where = (f"run_root={root or self.root}", f"python={self.python}")
        spec = spec_of("cluster=slurm", *where, *GPU, *JOB, *self.words, *words)
        plan = resolve(spec, probe([spec]))
        added = {"OMP_NUM_THREADS": "1", "PACE": str(pace), "PACE_SAVE": str(save)}
        return dataclasses.replace(plan, env={**plan.env, **added}, setup=(*plan.setup, LATER))

    def start(self, plan: Plan) -> Path:
        with self.one_at_a_time:
            (folder,) = submit([plan], {"schema": 1}, code={plan.code: code_files()})
        self.jobs.add(job_of(folder))
        return folder

    def go_on(self, folder: Path) -> None:
        """What a person would do with a run that failed: `resume`."""
        with self.one_at_a_time:
            assert resume.main([folder.name, f"run_root={folder.parent}"]) == 0
        self.jobs.add(job_of(folder))

    def ends_as_if_undisturbed(self, folder: Path, seconds: float = LONG) -> None:
        until(lambda: state(folder).finished, seconds)
        assert state(folder).name == "done", (state(folder), output_of(folder))
        self.is_as_if_undisturbed(folder)

    def is_as_if_undisturbed(self, folder: Path) -> None:
        """Weights, optimizer, random numbers and every step's row, bit by bit; each step once; proved; one job."""
        one, other = last_state(folder), last_state(self.whole)
        for key in one.keys() - {"progress"}:
            assert trainers.differences(one[key], other[key], key) == []
        steps, undisturbed = trainers.steps(folder), trainers.steps(self.whole)
        assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
        for column in ("epoch", "loss", "lr", "loss_scale", "skipped", "grad_norm"):
            assert [row[column] for row in steps] == [row[column] for row in undisturbed]
        result, expected = trainers.result(folder), trainers.result(self.whole)
        assert (result["status"], result["eval"], result["determinism"]) == ("done", expected["eval"], "exact")
        assert result["observed"]["verdict"] == "proved", result["observed"]
        assert len(submissions(folder)) <= len(list(folder.glob("sbatch.*.out")))


@contextlib.contextmanager
def submitting(submitter: Trainers) -> Iterator[Trainers]:
    """Cancels its jobs at the end."""
    try:
        yield submitter
    finally:
        call(["scancel", "--quiet", *sorted(submitter.jobs)])
        end_all(submitter.root)  # of launchers that a test killed


def undisturbed(folder: Path, ranks: int = 1, plain: bool = False) -> Path:
    """A run of the same job, here and alone."""
    program = (str(PLAIN),) if plain else trainers.MODULE
    trainers.succeed([*JOB, "device=cpu", f"run={folder}"], ranks, program)
    return folder


def launch(trainers: Trainers, slurm: Testbed) -> subprocess.Popen[str]:
    """The command as a person types it."""
    words = ["cluster=slurm", *GPU, *JOB, "env.OMP_NUM_THREADS=1"]
    where = [f"run_root={trainers.root}", f"python={trainers.python}"]
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words, *where],
        env=slurm.slurm_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folders_of(trainers: Trainers) -> set[Path]:
    return {run.folder for run in selection.newest([str(trainers.root)], 1000)}


def last_state(folder: Path) -> dict[str, Any]:
    """The state of the newest checkpoint."""
    plain = max(folder.glob("checkpoints/step-*")) / "state.json"
    return json.loads(plain.read_text()) if plain.exists() else trainers.last_state(folder)


def processes(folder: Path) -> list[int]:
    """The trainer's processes, those of torchrun not among them."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"run={folder}".encode() in words and b"torch.distributed.run" not in words:
            pids.append(int(pid))
    return pids


def shell(folder: Path) -> int:
    """The process of the newest attempt's script."""
    pid: int = store.read_or_empty(folder / "status.json")["process"]["pid"]
    return pid


def step(folder: Path) -> int:
    """Step of the newest checkpoint; 0 before the first."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def saved(folder: Path, least: int) -> None:
    """Wait for a checkpoint of that step or a later one."""
    until(lambda: step(folder) >= least or state_is_final(folder), LONG, every=0.05)
    assert step(folder) >= least, output_of(folder)


def state_is_final(folder: Path) -> bool:
    return store.read_or_empty(folder / "status.json").get("state") in ("done", "failed", "stopped", "cancelled")


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended since it was seen
            os.kill(pid, signal.SIGKILL)


def gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def ask_as_before_a_time_limit(folder: Path) -> None:
    """The signal that Slurm sends the script some time before the limit."""
    assert call(["scancel", "--batch", "--signal=USR1", job_of(folder)]).returncode == 0


def submissions(folder: Path) -> set[str]:
    """Slurm's jobs for this run, by what was submitted; its accounting may lack one if the controller was killed."""
    argv = ["sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--starttime=now-1hours"]
    lines = call([*argv, "--format=JobID,SubmitLine"]).stdout.splitlines()
    return {line.partition("|")[0] for line in lines if f"{folder}/run.sh" in line} | Answer(
        held=listed(None)
    ).of_script(f"{folder}/run.sh")


def output_of(folder: Path) -> str:
    """The end of all that a run said, for a test that fails."""
    files = [folder / "status.json", *sorted(folder.glob("attempts/*/*.log")), folder / "launch.log"]
    return "\n".join(f"{file}: {file.read_text()[-1500:]}" for file in files if file.exists())


SEED = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(10**6))


class Moments:
    """Random moments of a test, the same again for the same FAULT_SEED; FAULT_ROUNDS says how many rounds it has."""

    def __init__(self, test: str) -> None:
        print(f"FAULT_SEED={SEED}")
        self.random = random.Random(f"{SEED} {test}")
        self.rounds = int(os.environ.get("FAULT_ROUNDS") or 2)

    def step(self) -> int:
        """A step after the first checkpoint and before the last."""
        return self.random.randrange(EVERY, STEPS - 2 * EVERY)

    def wait(self, seconds: float) -> None:
        time.sleep(self.random.uniform(0, seconds))


def side_by_side(count: int, one: Callable[[int], Any], at_once: int = 3) -> None:
    """So many rounds, a few of them at the same time: most of a round is waiting for Slurm."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(count)))
