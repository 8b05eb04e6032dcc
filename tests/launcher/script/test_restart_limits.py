"""What Slurm starts again: how often a failed node may be the reason, and that no run goes on without progress."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher import bash_files
from launcher.runs import store

NODE, PREEMPTED = "its node n1 failed", "preempted by job 7 (root, partition priority)"


class Job:
    """A run in a folder, whose attempts begin as in a Slurm job, and end as a test says."""

    def __init__(self, folder: Path, most: str = "", who: str = "trainer") -> None:
        self.folder = store.create(folder, "20260101-000000-calm-otter")
        (self.folder / "checkpoints").mkdir()
        names = ("attempt.sh", "slurm.sh", "restart.sh")
        self.program = "\n".join([
            f"set -u; LAUNCHER_RUN={self.folder} LAUNCHER_WHO={who} LAUNCHER_RESTARTS={most} LAUNCHER_RESUMES=",
            "LAUNCHER_QUEUE=slurm LAUNCHER_SHARED= LAUNCHER_ENGINE= LAUNCHER_SECRETS=secrets LAUNCHER_HANGS=",
            *(bash_files.text("launcher.script", name) for name in names),
            "begin_attempt; end_if_in_vain; status running null null ''",
        ])  # fmt: skip

    def attempt(self, *, step: int | None = None, saves: bool = True, ends: str | None = None) -> dict[str, Any]:
        """Begin one. Where it may run it logs that step, and saves it; its end is recorded with this reason."""
        subprocess.run(["bash", "-c", self.program], check=False)
        status = store.read_or_empty(self.folder / "status.json")
        if status["state"] == "running":
            if step is not None:
                with open(self.folder / "metrics.jsonl", "a") as rows:
                    rows.write(f'{{"step": {step}, "loss": 0.5}}\n')
                if saves:
                    (self.folder / f"checkpoints/step-{step:09}").mkdir(exist_ok=True)
            if ends:
                ended = {**status, "state": "interrupted", "reason": ends}
                (self.folder / f"attempts/{status['attempt']}/ended.json").write_text(json.dumps(ended))
        return status

    def attempts(self, reason: str, steps: Sequence[int | None], saves: bool = True) -> dict[str, Any]:
        """The last of as many attempts as there are steps, and one more."""
        for step in steps:
            assert self.attempt(step=step, saves=saves, ends=reason)["state"] == "running"
        return self.attempt()


def test_failed_nodes_count_among_the_restarts(tmp_path: Path) -> None:
    ended = Job(tmp_path, "2").attempts(NODE, [4, 8, 12])
    assert (ended["state"], ended["attempt"]) == ("failed", 4)
    assert ended["reason"] == f"{NODE}; not restarted: 2 of 2 restarts used (restart.max)"


def test_none_are_allowed_with_zero(tmp_path: Path) -> None:
    job = Job(tmp_path, "0")
    (job.folder / "secrets").mkdir()
    assert job.attempts(NODE, [4])["reason"] == f"{NODE}; not restarted: 0 of 0 restarts used (restart.max)"
    assert not (job.folder / "secrets").exists()


@pytest.mark.parametrize("most", ["", "0", "1"])
def test_preemptions_count_nothing(tmp_path: Path, most: str) -> None:
    assert Job(tmp_path, most).attempts(PREEMPTED, [4, 8, 12, 16])["state"] == "running"


def test_without_a_number_slurm_restarts_as_often_as_a_node_fails(tmp_path: Path) -> None:
    assert Job(tmp_path).attempts(NODE, [4, 8, 12, 16, 20])["state"] == "running"


@pytest.mark.parametrize("reason", [NODE, PREEMPTED])
@pytest.mark.parametrize("steps", [[None, None, None], [4, 6, 7]], ids=["no step", "no checkpoint"])
def test_three_attempts_without_progress_end_it(tmp_path: Path, reason: str, steps: list[int | None]) -> None:
    job = Job(tmp_path)
    if steps[0] is None:
        ended = job.attempts(reason, steps)
    else:
        assert job.attempt(step=2, ends=reason)["state"] == "running"
        ended = job.attempts(reason, steps[:2], saves=False)
    assert (ended["state"], ended["reason"]) == ("failed", f"{reason}; not restarted: three attempts made no progress")
    assert ended["attempt"] == 4


def test_a_contradicted_mode_never_starts_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "5")
    job.attempt(step=4, ends=NODE)
    result = {"attempts": 1, "observed": {"verdict": "contradicted"}}
    (job.folder / "result.json").write_text(json.dumps(result, indent=1))
    assert job.attempt()["reason"] == f"{NODE}; not restarted: it did not run in the mode that it was asked for"


def test_a_script_of_which_nothing_is_known_goes_on(tmp_path: Path) -> None:
    assert Job(tmp_path, who="script").attempts(PREEMPTED, [None] * 5)["state"] == "running"


def test_the_steps_of_a_script_that_saves_elsewhere_are_its_progress(tmp_path: Path) -> None:
    assert Job(tmp_path / "on", who="script").attempts(PREEMPTED, [1, 2, 3, 4], saves=False)["state"] == "running"
    assert Job(tmp_path / "in", who="script").attempts(PREEMPTED, [1, 1, 1], saves=False)["state"] == "failed"


def test_a_resume_counts_anew(tmp_path: Path) -> None:
    job = Job(tmp_path, "0")
    job.attempt(step=4, ends=NODE)
    (job.folder / "submission.json").write_text('{"schema": 1, "first_attempt": 2}')
    assert job.attempt()["state"] == "running"
