"""A Slurm login node over SSH: the real Slurm, submitted to from a process that knows nothing of it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from launcher.executors.slurm.jobs import job_of
from launcher.runs import run_roots, selection, store
from launcher.runs.schema import Submission
from tests.launcher.ssh.far import HOLD, until


@pytest.fixture
def login(far, testbed, monkeypatch):
    """The same far side as a login node. This process has neither Slurm's configuration nor its programs."""
    before = type(far).words.fget
    words = property(lambda self: ["cluster=slurm", "cluster.login=box", "gpus=0", *before(self)[2:]])
    with monkeypatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        programs = far.there / "only-ssh"
        programs.mkdir()
        for name in ("ssh", "ssh-keygen"):
            (programs / name).symlink_to(f"/usr/bin/{name}")
        patch.setenv("PATH", str(programs))
        patch.setattr(type(far), "words", words)
        yield far
    for run in far.runs():
        slurm(far, "scancel", "--quiet", job(far, run).partition("_")[0])


def job(far, run: str) -> str:
    return job_of(store.read(Submission, far.folder(run) / "submission.json")) or ""


def slurm(far, *argv: str) -> str:
    environment = {**os.environ, **far.testbed.environment, "PATH": "/usr/bin:/bin"}
    return subprocess.run(["/usr/bin/" + argv[0], *argv[1:]], capture_output=True, text=True, env=environment).stdout


def test_a_run_is_queued_there_runs_and_is_done(login):
    (run,) = login.submit("steps=5", "cluster.time=5")
    assert job(login, run).isdigit()
    assert login.until(run, "done") == "done"
    assert "slurm" in login.type("ls", run).out
    assert "step 5" in login.type("logs", run).out
    assert login.type("fetch", run).code == 0
    # The whole word of it: nothing was left behind by the launcher on the nodes.
    assert f"JobName={store.read_or_empty(login.folder(run) / 'plan.json')['name']}" in slurm(
        login, "scontrol", "show", "job", job(login, run)
    )


def test_a_sweep_is_one_array(login):
    cells = login.submit("steps=2", "seed=1,2,3")
    assert [job(login, cell).partition("_")[2] for cell in cells] == ["0", "1", "2"]
    assert login.type("watch", cells[0].rpartition("-")[0]).code == 0


def test_a_run_is_cancelled_saved_and_resumed_with_another_time_limit(login):
    (run,) = login.submit("steps=9", HOLD)
    until(lambda: "step 1" in login.type("logs", run).out)
    (later,) = login.submit("steps=1", f"after={run}")
    until(lambda: f"waiting for {run}, which it comes after" in login.type("ls", later).out)
    assert "scheduler   asked " in login.type("ls", later).out
    assert login.type("cancel", "--now", later).code == 0
    done = login.ok("cancel", run)
    assert "saved at step" in done.out
    login.release(run)
    done = login.ok("resume", run, "cluster.time=7", "steps=12", "wait=true")
    assert login.attempts(run) == [1, 2]
    assert "TimeLimit=00:07:00" in slurm(login, "scontrol", "show", "job", job(login, run))


def test_a_job_that_the_cluster_would_refuse_is_refused_before_and_leaves_nothing(login):
    for words, code, says in (
        (["cluster.partition=nope"], 2, "is not one of gpu"),
        (["cluster.partition=short", "cluster.time=9:00:00"], 2, "over the"),
        (["gpus=9"], 2, "gpus=9"),
        (["cluster.login=nowhere.invalid"], 3, "no host nowhere.invalid"),
    ):
        done = login.type(*login.words, *words)
        assert done.code == code and says in done.err, (words, done.err)
        assert login.runs() == []
        assert selection.run_names(run_roots.remote()) == []


def place(login, programs: list[str], profile: str) -> str:
    """A Python there that starts with these programs alone on its path, and a login shell with that profile."""
    home, folder = login.there / "home", login.there / "bin"
    for path in (home, folder):
        path.mkdir()
        os.chown(path, login.testbed.user.uid, login.testbed.user.gid)
    for name in programs:
        (folder / name).symlink_to(f"/usr/bin/{name}")
    (home / ".bash_profile").write_text(f"{profile}\n")
    return str(login.program("as-over-there", f'#!/bin/sh\nHOME={home} PATH={folder} exec /usr/bin/python3 "$@"\n'))


def test_a_login_node_without_slurm_is_reported(login):
    python = place(login, ["bash"], "PATH=/nowhere")
    assert "no sbatch on" in login.refused(*login.words, f"cluster.python={python}", code=3)


def test_slurm_is_found_where_only_login_shells_have_it_on_their_path(login):
    """As clusters do that put Slurm under /opt, and on the PATH in /etc/profile.d."""
    programs = login.there / "opt"
    programs.mkdir()
    for name in ("sbatch", "squeue", "scontrol", "sinfo", "scancel", "sacct"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    python = place(login, ["bash", "uname"], f"echo Welcome; PATH=$PATH:{programs}")
    (run,) = login.submit("steps=1", f"cluster.python={python}")
    assert login.until(run, "done") == "done"


def test_the_jobs_of_a_sweep_that_were_accepted_stay_listed_though_the_next_is_refused(login):
    """As where a limit on a user's jobs is reached in between."""
    programs, once = login.there / "opt", login.there / "once"
    for path in (programs, once):
        path.mkdir()
        os.chown(path, login.testbed.user.uid, login.testbed.user.gid)
    refusing = f'case "$*" in *--test-only*) ;; *) rmdir {once} || exit 1 ;; esac'
    login.program("opt/sbatch", f'#!/bin/sh\n{refusing}\nexec /usr/bin/sbatch "$@"\n')
    for name in ("squeue", "scontrol", "sinfo", "scancel", "sacct"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    python = place(login, ["bash", "uname"], f"PATH={programs}:$PATH")
    words = (f"cluster.python={python}", "steps=1", HOLD, "seed=1,2", "gpus=0,1")
    error = login.refused(*login.words, *words)
    sweep = selection.run_names(run_roots.remote())[0].rpartition("-")[0]
    assert f"{sweep} was refused, but 2 of its 4 runs may have been started" in error
    kept = [f"{sweep}-000", f"{sweep}-002"]
    assert sorted(login.runs()) == kept
    assert sorted(run["id"] for run in json.loads(login.ok("ls", sweep, "--json").out)) == kept
    assert login.type("cancel", "--now", sweep).code == 0
