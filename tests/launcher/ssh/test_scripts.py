"""A script of the user's own over SSH: the file goes along, and it starts in a folder of its run's own."""

from __future__ import annotations

import json
import uuid

from launcher.runs import processes
from tests.launcher.ssh.far import until

TELL = """\
import json, os, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
tool = subprocess.run([f"{here}/tool.sh"], capture_output=True, text=True, check=True).stdout
table = open("data/table").read()
json.dump([sys.argv[1:], os.getcwd(), open(__file__).read(), tool, table], open("told.json", "w"))
"""

# Says that it has torch, as the plan wants to know; what it runs is run by a real Python.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then printf '3.11.0\\ntorch 2.13.0\\n'; else exec {real} "$@"; fi
"""


def test_a_script_is_sent_with_its_arguments_and_runs_in_its_own_folder(far, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "tell.py").write_text(TELL)
    (project / "tool.sh").write_text("#!/bin/sh\necho a tool\n")
    (project / "tool.sh").chmod(0o755)
    data = far.there / "sets" / "data"
    data.mkdir(parents=True)
    (data / "table").write_text("a table")
    monkeypatch.chdir(project)
    python = far.program("real", PYTHON.format(real=far.testbed.python))
    bare = ("train.bare=true", "require_proof=false", "amp=o0")
    words = ("recipe=script", "script=tell.py", *bare, f"python={python}")
    lacking = far.refused(*far.words, *words, f"script.inputs=[{data},{data}2]")
    assert f"script.inputs=[{data}2]: there is no such file or folder on " in lacking
    (run,) = far.submit(*words, f"script.inputs=[{data}]", "sweep.lr=0.1", "--", "--lr", "{lr}", "it's a b")
    assert far.until(run, "done", "failed") == "done", far.type("logs", run).err
    work = far.folder(run) / "work"
    assert json.loads((work / "told.json").read_text()) == [
        ["--lr", "0.1", "it's a b"],
        str(work),
        TELL,
        "a tool\n",
        "a table",
    ]
    assert (work / "data").readlink() == data


def test_the_output_of_a_remote_script_is_shown_while_the_launcher_waits(far, tmp_path, monkeypatch):
    (tmp_path / "tell.py").write_text("import sys\nprint('printed there')\nprint('complained', file=sys.stderr)\n")
    monkeypatch.chdir(tmp_path)
    bare = ("train.bare=true", "require_proof=false", "amp=o0", "gpus=0", "framework=torch")
    done = far.ok("tell.py", *far.words, *bare, f"python={far.testbed.python}", "wait=true")
    assert "\nprinted there\n" in done.out and "complained\n" in done.err


SAVES = """\
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"], "saved")
def save(*_):
    saved.write_text("x")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("begun", sys.argv[1:], saved.exists(), flush=True)
if not saved.exists():
    time.sleep(300)
"""


def test_a_cancelled_remote_script_saves_and_can_be_resumed(far, tmp_path, monkeypatch):
    (tmp_path / "saves.py").write_text(SAVES)
    monkeypatch.chdir(tmp_path)
    bare = ("train.bare=true", "require_proof=false", "amp=o0")
    words = ("recipe=script", "script=saves.py", *bare, "gpus=0", "workdir=run", "framework=torch")
    (run,) = far.submit(*words, f"python={far.testbed.python}", "script.resume_arguments=[--resume]")
    log = far.folder(run) / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun [] False" in log.read_text(), 120)
    ended = far.ok("cancel", run)
    assert "cancelled after" in ended.out and "on request" in ended.out
    assert far.type("resume", run).code == 0
    assert far.until(run, "done", "failed", seconds=120) == "done"
    assert "begun ['--resume'] True" in (far.folder(run) / "attempts/2/stdout.log").read_text()


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
