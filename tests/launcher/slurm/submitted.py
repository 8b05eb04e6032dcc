"""Runs submitted to the real Slurm as a user submits them, all before any of them is looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.amp_launcher.torch.trainers import result
from tests.launcher.run_folders import end_all
from tests.launcher.slurm.bench import GPU, ended
from tests.launcher.slurm.trainers import LONG, output_of
from tests.testbed.facts import Testbed

CHECKOUT = str(Path(__file__).parents[3])


class Submitted(NamedTuple):
    """Each has a name, and a run root of that name."""

    root: Path
    environment: Mapping[str, str]

    def launcher(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(argv, cwd=self.root, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def folder(self, name: str) -> Path:
        (plan,) = (self.root / name).glob("*/plan.json")
        return plan.parent

    def output(self, name: str, attempt: int = 1) -> str:
        return (self.folder(name) / f"attempts/{attempt}/stdout.log").read_text()

    def done(self, name: str) -> dict[str, Any]:
        """The result of one that is to end well."""
        folder = self.folder(name)
        seen = ended(folder, LONG)
        assert seen.name == "done", (seen, output_of(folder))
        return result(folder)


def submitted_by(requests: Callable[[Path], Mapping[str, Sequence[str]]]) -> Any:
    """A fixture of a module: these are submitted by their names, and cancelled at the end. They are made in the root of
    all; the words of each follow the `cluster=slurm gpus=1 device=cpu` of all."""

    @pytest.fixture(scope="module")
    def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
        root = tmp_path_factory.mktemp("submitted")
        state = root.with_name(f"{root.name}-state")  # not beside scripts, which would take it along
        own = {"PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(state)}
        made = Submitted(root, testbed.slurm_env(own))
        words = requests(root)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in testbed.environment.items():
                patch.setenv(name, value)

            def submit(name: str) -> None:
                more = (f"run_root={root / name}", "cluster=slurm", *GPU, "telemetry.every=0")
                made.launcher(*more, "env.OMP_NUM_THREADS=1", *words[name])

            try:
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(submit, words))
                yield made
            finally:
                for name in words:
                    end_all(root / name)

    return submitted
