"""What the other tests rely on: that each part is there, is real, and comes back when it dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.testbed.bed import LOOPBACK, find, wait_until
from tests.testbed.facts import SERVERS, Testbed, gather

REPOSITORY = Path(__file__).resolve().parents[2]
# A session's worth of faults takes its time; nothing here should ever wait longer.
PATIENCE = 120


def run(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)


def printed(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """A command's standard output; the command has to succeed."""
    done = run(argv, env)
    assert done.returncode == 0, f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def running_job(testbed: Testbed, *options: str) -> str:
    """The id of a job that runs, and that the controller's state on disk knows to be running: it writes that up to five
    seconds late, and one that is killed before then starts a running job anew."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 300"]
    job = printed(argv, testbed.slurm_env())
    assert wait_until(lambda: state(testbed, job) == "RUNNING", 60)
    # Whether Slurm saves its state when a job starts depends on which scheduler starts it; an update of a job is saved.
    updated = time.time()
    printed(["scontrol", "update", f"jobid={job}", "comment=running"], testbed.slurm_env())
    saved = Path(testbed.slurm.conf).with_name("state") / "job_state"
    assert wait_until(lambda: time.time() > updated + 8 and saved.stat().st_mtime > updated, 90)
    return job


def state(testbed: Testbed, job: str) -> str:
    return printed(["squeue", "-h", "-j", job, "-o", "%T"], testbed.slurm_env())


def control(*verb: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "tests.testbed", *verb], dict(os.environ), cwd=str(REPOSITORY))


def servers_now() -> Mapping[str, int]:
    """The servers' process ids at this moment; the fixture's are those of the session's start, before any kill."""
    now = gather(find())
    assert now
    return now.servers


@pytest.mark.usefixtures("testbed")
def test_bringing_up_what_is_up_starts_nothing() -> None:
    before = servers_now()
    done = control("up")
    assert done.returncode == 0, done.stderr
    assert servers_now() == before


@pytest.mark.usefixtures("testbed")
def test_everything_listens_on_loopback_only() -> None:
    pids = {f"pid={pid}," for pid in servers_now().values()}
    ours = [line.split() for line in printed(["ss", "-ltnpH"]).splitlines() if any(pid in line for pid in pids)]
    assert len(ours) == 7  # controller, two nodes, accounting and its database, two sshds
    assert {words[3].rpartition(":")[0] for words in ours} == {LOOPBACK}


def test_a_batch_job_of_an_ordinary_user_runs_on_both_nodes_with_its_gpus(testbed: Testbed) -> None:
    output = Path(testbed.shared) / f"job-{os.getpid()}.txt"
    # SLURM_NODEID, not the order of lines: both tasks write at once.
    step = "srun bash -c 'echo $SLURM_NODEID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $(id -un)'"
    argv = ["sbatch", "--wait", "-N2", "--ntasks-per-node=1", "--gpus-per-node=3", f"--output={output}"]
    printed(testbed.as_user([*argv, "--wrap", step]))
    rows = sorted(line.split() for line in output.read_text().splitlines())
    assert [(*row[:2], row[3]) for row in rows] == [("0", "n1", "rehearsal"), ("1", "n2", "rehearsal")]
    assert [len(set(row[2].split(","))) for row in rows] == [3, 3]
    output.unlink()


def test_a_client_that_sees_no_accounting_can_do_all_but_sacct(testbed: Testbed) -> None:
    env = testbed.slurm_env({"SLURM_CONF": testbed.slurm.conf_without_accounting})
    assert run(["sacct"], env).returncode == 1
    assert printed(["srun", "echo", "ran"], env) == "ran"
    assert printed(["sinfo", "-h", "-o", "%D"], env)


def test_the_user_logs_in_over_the_bastion_with_keys_of_their_own_to_all_programs(testbed: Testbed) -> None:
    programs = "id -un; sinfo --version; docker version -f ok; apptainer --version"
    user, *versions = printed(testbed.as_user(["ssh", "testbed-jump", programs])).splitlines()
    assert user == testbed.user.name
    assert [line.split()[0] for line in versions] == ["slurm-wlm", "ok", "apptainer"]


@pytest.mark.alone
@pytest.mark.slow
def test_any_server_that_is_killed_comes_back_and_a_running_job_notices_nothing(testbed: Testbed) -> None:
    env = testbed.slurm_env()
    job = running_job(testbed)
    # Of each pair that talks to each other, one at a time. The controller first: killed, it forgets that a job ended in
    # its last seconds, and would show the `srun` of an earlier round as running for ever.
    for killed in (SERVERS[1::2], SERVERS[::2]):
        before = gather(find())
        assert before and before.up
        for server in killed:
            testbed.kill(server)
        during = gather(find())
        assert during
        # A server may end on its own when the one that it talks to is killed: it comes back too.
        assert not [name for name in killed if during.servers[name] is not None]
        testbed.revive()
        after = gather(find())
        assert after and after.up
        assert not [name for name in killed if after.servers[name] == before.servers[name]]
        assert state(testbed, job) == "RUNNING", killed
        assert printed(["srun", "echo", "ran"], env) == "ran", killed
    contained = ["docker", "run", "--rm", "--network=none", testbed.images["python"].docker, "true"]
    # The engine reconnects to a new containerd after a pause.
    assert wait_until(lambda: run(contained, env).returncode == 0, 60)
    printed(["scancel", job], env)


USER_OF_THE_FIXTURE = """
pytest_plugins = ["tests.testbed.plugin"]
def test_one(testbed): pass
def test_two(testbed): pass
"""


@pytest.mark.parametrize(("required", "outcome"), [("", "2 skipped"), ("1", "2 errors")])
def test_without_a_testbed_tests_are_skipped_with_a_count_or_fail_where_it_is_required(
    tmp_path: Path, required: str, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text(USER_OF_THE_FIXTURE)
    env = dict(os.environ) | {"TESTBED_DIR": str(tmp_path / "none"), "TESTBED_REQUIRED": required}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.testbed.plugin"]
    done = run([*argv, f"--rootdir={tmp_path}", str(tmp_path / "test_it.py")], env, cwd=str(REPOSITORY))
    assert outcome in done.stdout
    assert "`make testbed`" in done.stdout
    if not required:
        assert "2 tests need the testbed and were skipped: run `make testbed`" in done.stdout
