"""What the real sacct says of jobs, and what becomes of runs that squeue no longer lists."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.executors import backends
from launcher.executors.slurm import jobs
from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.store import Run
from tests.launcher.slurm.bench import Bench, ended, job_of, until
from tests.testbed.bed import TestbedError
from tests.testbed.facts import Testbed
from tests.testbed.slurm import GPUS


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    jobs._fields.cache_clear()
    yield
    jobs._fields.cache_clear()


def sbatch(command: str, *words: str) -> str:
    done = call(["sbatch", "--parsable", "--output=/dev/null", "--mem=100M", *words, f"--wrap={command}"])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def forget(job: str) -> None:
    """Wait until squeue no longer lists a job that has ended."""
    until(lambda: job not in jobs.listed(None), 180)


def newest(job: str) -> jobs.Row:
    """sacct's row of a job that has ended, which comes a little later."""
    found = until(lambda: [row for row in jobs.accounted([job], None).rows.get(job, ())[-1:] if not row.lives])
    return found[0]


def test_each_end_of_a_job_is_read_with_what_names_its_cause(slurm: Testbed) -> None:
    long = "exec sleep 300"
    good, bad, killed = sbatch("true"), sbatch("exit 3"), sbatch("kill -9 $$")
    cancelled = sbatch(long)
    low = sbatch(long, "--partition=scavenge", "--nodelist=n1", f"--gres=gpu:{GPUS}")
    until(lambda: jobs.listed(None)[low].state == jobs.listed(None)[cancelled].state == "RUNNING")
    high = sbatch("true", "--partition=priority", "--nodelist=n1", f"--gres=gpu:{GPUS}")
    call(["scancel", cancelled])
    for job, name, exit_code, verdict in (
        (good, "COMPLETED", "0:0", "Slurm calls it COMPLETED"),
        (bad, "FAILED", "3:0", "its script ended with exit code 3"),
        (killed, "FAILED", "0:9", "its script was killed by signal 9"),
        (cancelled, "CANCELLED", "0:0", "it was cancelled in Slurm by root"),
    ):
        row = newest(job)
        assert (row.state, row.exit, jobs.verdict(row)) == (name, exit_code, verdict), job
    assert newest(cancelled).by == str(os.geteuid())
    assert newest(high).state == "COMPLETED"
    first = until(lambda: [row for row in jobs.accounted([low], None).rows[low][:-1] if not row.lives])[0]
    assert (first.state, jobs.verdict(first)) == ("PREEMPTED", "another job took its place")
    call(["scancel", low])


def test_the_elements_of_an_array_are_read_one_by_one_whether_they_started_or_not(slurm: Testbed) -> None:
    array = sbatch('exit "$SLURM_ARRAY_TASK_ID"', "--array=0-3,8-20:4", "--hold")
    call(["scontrol", "release", f"{array}_0", f"{array}_1"])
    assert [newest(f"{array}_{index}").exit for index in (0, 1)] == ["0:0", "1:0"]
    call(["scancel", array])
    wanted = [f"{array}_{index}" for index in (1, 2, 3, 4, 8, 12, 16, 20, 24)]
    rows = until(lambda: (rows := jobs.accounted(wanted, None).rows) and rows[f"{array}_2"][-1].by and rows)
    assert rows.keys() == {*wanted} - {f"{array}_4", f"{array}_24"}
    assert {rows[job][-1].state for job in rows} == {"FAILED", "CANCELLED"}


def test_a_sacct_of_another_release_is_asked_only_for_what_it_has(
    slurm: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sbatch("exit 3", "--comment=a|b")
    assert newest(job).exit == "3:0"
    # The real one, without two of its fields.
    real = shutil.which("sacct")
    lacking = 'case "$*" in *Comment*) echo "Invalid field requested" >&2; exit 1;; esac'
    text = f"#!/bin/sh\n[ $1 = --helpformat ] && {{ {real} $1 | tr ' ' '\\n' | grep -v Comment; exit; }}\n{lacking}\n"
    (tmp_path / "sacct").write_text(f'{text}exec {real} "$@"\n')
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    jobs._fields.cache_clear()
    assert newest(job).exit == "3:0"


SHELL_KILLED = """os.kill(json.load(open(sys.argv[-1][4:] + "/status.json"))["process"]["pid"], 9); sys.exit(1)"""


@pytest.mark.alone
def test_a_run_that_squeue_has_forgotten_is_what_sacct_calls_it_and_unknown_while_sacct_fails(
    bench: Bench, slurm: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = sbatch("exec sleep 300", "--time=1")
    (failed,) = bench.submit(bench.plan(SHELL_KILLED))
    elements = bench.submit(bench.plan(SHELL_KILLED), bench.plan(SHELL_KILLED))
    monkeypatch.setenv("SLURM_CONF", slurm.slurm.conf_without_accounting)
    (unaccounted,) = bench.submit(bench.plan(SHELL_KILLED))
    monkeypatch.setenv("SLURM_CONF", slurm.slurm.conf)
    (alive,) = bench.submit(bench.plan("time.sleep(600)"))
    for folder in (failed, *elements, unaccounted):
        (folder / store.SECRETS).mkdir()
        os.utime(folder / store.SECRETS, (0, 0))  # laid down before the attempt
        forget(job_of(folder))
    monkeypatch.setattr(jobs, "ACCOUNTS_PATIENCE", 2.0)
    try:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            slurm.kill("slurmdbd", number)
            seen = backends.states_of([Run(str(bench.root), folder.name) for folder in (failed, *elements, alive)])
            assert [row.state.name for row in seen] == ["unreachable"] * 3 + ["running"], seen
            assert "how it ended is not known: sacct" in seen[0].state.reason
            backends.settle(seen)
            assert (failed / store.SECRETS).exists()
    finally:
        with contextlib.suppress(TestbedError):
            slurm.kill("slurmdbd")
        slurm.revive()
    for folder in (failed, *elements):
        assert ended(folder, 180)[:2] == ("failed", f"its script was killed by signal 9 (job {job_of(folder)})")
    lost, known = backends.states_of([Run(str(bench.root), folder.name) for folder in (unaccounted, failed)])
    assert lost.state[:2] == ("lost", f"it was running, and Slurm no longer knows job {job_of(unaccounted)}")
    backends.settle([lost, known])
    until(lambda: not jobs.listed(None)[limited].lives, 180)
    assert newest(limited).state == "TIMEOUT"
    assert (unaccounted / store.SECRETS).exists() and not (failed / store.SECRETS).exists()
