"""Variables and secrets of a script over a real sshd."""

from __future__ import annotations

import uuid

from launcher.runs import processes
from tests.launcher.ssh.far import until

JOB = """\
import os, sys, time
print("flag", os.environ.get("MY_FLAG"), "token", len(os.environ["API_TOKEN"]), "noise", os.environ.get("NOISE"))
if os.path.exists(os.environ["FAIL_ONCE"]):
    os.unlink(os.environ["FAIL_ONCE"])
    sys.exit(3)
"""


def job(far, script):
    names = ("train.bare=true", "train.precision=script", "require_proof=false", f"python={far.testbed.python}")
    return ("recipe=script", f"script={script}", f"env.FAIL_ONCE={far.there}/fail", *names)


def holding(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_variables_and_secrets_of_the_shell_reach_a_remote_job_and_secrets_are_deleted_at_its_end(
    far, tmp_path, monkeypatch
):
    (tmp_path / "train.py").write_text(JOB)
    flag, token = f"{uuid.uuid4().hex} $(id)", uuid.uuid4().hex
    monkeypatch.setenv("MY_FLAG", flag)
    monkeypatch.setenv("API_TOKEN", token)
    monkeypatch.setenv("NOISE", "x")
    far.there.chmod(0o777)
    (far.there / "fail").touch()
    (run,) = far.submit(*job(far, tmp_path / "train.py"), "env.MY_FLAG", "secrets.API_TOKEN")
    assert far.until(run, "done", "failed") == "failed"
    assert f"flag {flag} token 32 noise None" in far.type("logs", run).out
    assert sorted(holding(far.root, flag.encode())) == [
        far.folder(run) / ".environment",
        far.folder(run) / "attempts/1/stdout.log",
    ]
    assert (far.folder(run) / ".environment").stat().st_mode & 0o777 == 0o600
    until(lambda: not (far.folder(run) / ".secrets").exists())
    assert holding(far.root, token.encode()) == []
    assert holding(far.pointer(run), token.encode()) == []
    refused = far.refused("resume", run)
    assert "secrets.API_TOKEN" in refused and "ended with it; say secrets.API_TOKEN=" in refused
    wrong = far.refused("resume", run, "secrets.OTHER=/etc/hostname")
    assert "keeps no secret of that name; it keeps API_TOKEN" in wrong
    assert far.type("resume", run, "secrets.API_TOKEN").code == 0
    assert far.until(run, "done") == "done"
    assert holding(far.root, token.encode()) == []


def test_secrets_of_a_killed_remote_run_are_deleted_at_the_next_look(far, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hush")
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    (run,) = far.submit(*job(far, tmp_path / "train.py"), "secrets.API_TOKEN")
    until(lambda: far.status(run).get("process"))
    assert (far.folder(run) / ".secrets/API_TOKEN").stat().st_mode & 0o777 == 0o600
    processes.end([processes.Target(processes.from_json(far.status(run)["process"]), run)], 0)
    far.until(run, "failed", "lost")
    until(lambda: not (far.folder(run) / ".secrets").exists())
