"""Runs submitted to the real Slurm as a user submits them, all before any of them is looked at."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launcher.slurm.bench import ended
from tests.launcher.slurm.stories import end_all
from tests.launcher.slurm.trainers import LONG
from tests.testbed.facts import Testbed

CHECKOUT = str(Path(__file__).parents[3])


class Submitted(NamedTuple):
    """Each has a name, and a run root of that name."""

    root: Path
    environment: Mapping[str, str]

    def launcher(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(argv, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def folder(self, name: str) -> Path:
        (found,) = [each for each in (self.root / name).iterdir() if (each / "plan.json").exists()]
        return found

    def said(self, name: str, attempt: int = 1) -> str:
        return (self.folder(name) / f"attempts/{attempt}/stdout.log").read_text()

    def done(self, name: str) -> dict[str, Any]:
        """The result of one that is to end well."""
        folder = self.folder(name)
        seen = ended(folder, LONG)
        logs = "".join(each.read_text() for each in folder.glob("attempts/*/stderr.log"))
        assert seen.name == "done", (seen, logs[-2000:])
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


@contextlib.contextmanager
def all_submitted(testbed: Testbed, root: Path, requests: Mapping[str, Sequence[str]]) -> Iterator[Submitted]:
    """These, by their names; the words of each follow the `cluster=slurm gpus=0` of all. Cancelled at the end."""
    state = root.with_name(f"{root.name}-state")  # not beside scripts, which would take it along
    own = {"PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(state)}
    found = Submitted(root, testbed.slurm_env(own))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in testbed.environment.items():
            patch.setenv(name, value)

        def submit(name: str) -> None:
            more = (f"run_root={root / name}", "cluster=slurm", "gpus=0", "telemetry.every=0")
            found.launcher(*more, "env.OMP_NUM_THREADS=1", *requests[name])

        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(submit, requests))
            yield found
        finally:
            for name in requests:
                end_all(root / name)
