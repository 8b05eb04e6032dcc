"""Stand-in jobs on the testbed's Slurm, and what becomes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.code import code_store
from launcher.code.job_files import code_files
from launcher.executors.slurm import jobs
from launcher.executors.submission import submit
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import store
from launcher.runs.schema import Submission
from launcher.runs.states import State
from launcher.ssh.probe_client import probe
from tests.launcher import run_folders
from tests.launcher.hosts import spec_of
from tests.launcher.run_folders import state
from tests.testbed.facts import Testbed

until = functools.partial(run_folders.until, every=0.2)
GPU = ("gpus=1", "device=cpu")
"""A job with a GPU, as users' jobs have: Slurm treats its steps otherwise. The testbed's computes nothing."""


def enter(testbed: Testbed, patch: pytest.MonkeyPatch) -> None:
    """Make the testbed's cluster this process's own."""
    for name in [name for name in os.environ if name.startswith(("SLURM_JOB", "SLURM_ARRAY", "SBATCH_"))]:
        patch.delenv(name)
    for name, value in testbed.environment.items():
        patch.setenv(name, value)


@contextlib.contextmanager
def cluster_of(testbed: Testbed, folder: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own, with a state folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        enter(testbed, patch)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield testbed


class Bench:
    """Submits stand-in jobs and waits for what becomes of them."""

    def __init__(self, tmp_path: Path, program: Path) -> None:
        self.root, self.program, self.dump = tmp_path / "runs", program, tmp_path / "dump"

    def plan(self, behaviour: str = "", *words: str) -> Plan:
        spec = spec_of("cluster=slurm", f"run_root={self.root}", f"python={self.program}", *self._gpus(words), *words)
        facts = dataclasses.replace(probe([spec]), packages={"torch": "0"}, python_version="3.12.0")
        plan = resolve(spec, facts)
        if "\n" in behaviour:
            text, behaviour = behaviour, f"exec(open({str(self.dump)!r} + '.py').read())"
            program = self.dump.with_name("dump.py")
            if not program.exists() or program.read_text() != text:  # else a job that starts may find it empty
                program.write_text(text)
        return dataclasses.replace(plan, env={**plan.env, "DUMP": str(self.dump), "BEHAVIOUR": behaviour})

    @staticmethod
    def _gpus(words: tuple[str, ...]) -> tuple[str, ...]:
        return () if any(word.startswith(("gpus=", "visible_gpus=")) for word in words) else GPU

    @staticmethod
    def write_code(plan: Plan) -> None:
        """The snapshot that a plan names, for a submission that brings no code."""
        store.make_root(Path(plan.run_root), shared=plan.shared is not None)
        code_store.store(Path(plan.code_dir).parent, plan.code, code_files())

    def submit(self, *plans: Plan) -> list[Path]:
        return submit(plans, {"schema": 1}, code={plans[0].code: code_files()})

    def seen(self) -> dict[str, Any]:
        """What the newest job's trainer was given."""
        return store.read_or_empty(self.dump)


def ended(folder: Path, seconds: float = 60.0) -> State:
    until(lambda: state(folder).finished, seconds)
    return state(folder)


def job_of(folder: Path) -> str:
    job = jobs.job_of(store.read(Submission, folder / "submission.json"))
    assert job is not None
    return job
