"""Bare scripts on a host whose Python is of 2019: everything that is asked of it goes through bash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launcher import bash_files
from launcher.runs import processes, run_ids, run_roots, selection, store
from launcher.ssh import bash_session, host
from launcher.ssh.failures import BadAnswer
from launcher.ssh.host import Host
from tests.launcher.ssh.far import until
from tests.launcher.ssh.ways import address, configuration
from tests.testbed.proxy import Proxy

# To the launcher's first words it is a Python 3.6; it tells of its packages, and runs nothing of ours.
OLD = """#!/bin/sh
case "$2" in
  *b64decode*) printf '\\nlauncher-agent old 3.6.8 /usr/bin/python3\\n' ;;
  *find_spec*) printf '3.6.8\\ntorch 1.2.0\\n' ;;
  *) exit 99 ;;
esac
"""
# As the user of that machine would have it: reads a script and does what it says in a shell.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then printf '3.6.8\\ntorch 1.2.0\\n'; else exec {real} "$@"; fi
"""
TELL = "import json, os, sys\njson.dump([sys.argv[1:], os.getcwd(), dict(os.environ)], open('told.json', 'w'))\n"
WAIT = "import time\nprint('begun', flush=True)\nfor n in range(6000):\n    time.sleep(.1)\n"
BARE = ("recipe=script", "train.bare=true", "train.precision=script", "require_proof=false")


@pytest.fixture
def old(far, tmp_path, own_sshd, monkeypatch):
    """The far machine with the old Python, and a folder of scripts here."""
    folder = far.there / "old"
    folder.mkdir()
    far.program("old/python3", OLD)
    far.python.write_text(PYTHON.format(real=far.testbed.python))
    far.sshd = own_sshd(SetEnv=f"PATH={folder}:/usr/bin:/bin SECRET_OF_PLACE=1")
    far.config = configuration(tmp_path, far.testbed, **far.sshd.lines)
    project = tmp_path / "project"
    project.mkdir()
    (project / "tell.py").write_text(TELL)
    (project / "wait.py").write_text(WAIT)
    (project / "fail.py").write_text("import sys\nprint('so it went', file=sys.stderr)\nsys.exit(7)\n")
    monkeypatch.chdir(project)
    return far


def test_a_bare_script_runs_there_and_is_seen_followed_fetched_and_removed(old, tmp_path, monkeypatch):
    secret = tmp_path / "token"
    secret.write_text("it's $(id) secret\n")
    secret.chmod(0o600)
    monkeypatch.setenv("GIVEN", "a 'b' $c")
    table = old.there / "table"
    table.write_text("a table")
    words = (f"secrets.MY_TOKEN={secret}", "env.GIVEN", "telemetry.every=1", f"script.inputs=[{table}]")
    (run,) = old.submit(*BARE, "script=tell.py", *words, "--", "--lr", "0.1", "it's a `b`")
    assert old.until(run, "done", "failed", "lost") == "done", old.type("logs", run).err
    arguments, folder, variables = json.loads((old.folder(run) / "work/told.json").read_text())
    assert arguments == ["--lr", "0.1", "it's a `b`"] and Path(folder).samefile(old.folder(run) / "work")
    assert (variables["MY_TOKEN"], variables["GIVEN"]) == ("it's $(id) secret", "a 'b' $c")
    assert not variables.keys() & {"SECRET_OF_PLACE", "LC_ALL"}
    assert (old.folder(run) / "work/table").readlink() == table
    assert old.folder(run).stat().st_mode & 0o77 == 0
    assert not list(old.root.glob(".handing.[0-9a-f]*"))
    assert old.type("fetch", run, f"to={tmp_path / 'here'}").code == 0
    (copy,) = Path(tmp_path, "here").rglob("told.json")
    assert copy.read_bytes() == (old.folder(run) / "work/told.json").read_bytes()
    unsaid = old.refused("rm", run[:-1])
    assert re.search(rf"{run} +\d+[.\d]* [KM]iB", unsaid)
    (old.folder(run) / ".secrets").mkdir()
    assert old.type("rm", run).code == 0
    (removed,) = old.root.glob(f".trash/*/{run}")
    assert not old.folder(run).exists() and list((old.root / ".code").iterdir())  # with which it could be brought back
    assert (removed / "work/told.json").exists() and not (removed / ".secrets").exists()
    os.utime(removed.parent, (0, 0))
    (other,) = old.submit(*BARE, "script=fail.py")
    old.until(other, "failed", "lost", "done")
    until(lambda: old.type("rm", "--now", other).code == 0)  # its shell ends after it has recorded the end
    assert not [*old.root.glob(".trash/*"), *(old.root / ".code").iterdir(), *old.root.glob(other)]


def test_a_failure_is_reported_with_its_last_lines_and_not_resumed(old):
    (run,) = old.submit(*BARE, "script=fail.py")
    assert old.until(run, "done", "failed", "lost") == "failed"
    assert "exit code 7" in old.type("ls", run).out
    assert "so it went" in old.type("logs", run).err
    assert old.type("logs", "-f", run).err.count("so it went") == 1
    done = old.type("resume", run)
    assert done.code in (2, 3) and "3.10 or newer" in done.err


def test_rm_refuses_a_running_script_and_cancel_ends_it(old):
    (run,) = old.submit(*BARE, "script=wait.py")
    old.until(run, "running")
    until(lambda: old.type("logs", run).out == "begun\n")
    assert "not ended yet" in old.refused("rm", run)
    shell = processes.from_json(old.status(run)["process"])
    old.ok("cancel", run)
    assert old.state(run) == "cancelled"
    assert processes.processes_of([processes.Target(shell, run)]) == [[]]  # a zombie that nobody reaps is dead


def test_a_killed_run_is_shown_as_lost(old):
    (run,) = old.submit(*BARE, "script=wait.py")
    old.until(run, "running")
    os.killpg(old.status(run)["process"]["pid"], signal.SIGKILL)
    assert old.until(run, "lost", "failed", "done") == "lost"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("steps=1",), "3.10 or newer is needed there"),
        ((*BARE, "script=tell.py", "amp=o0,o1"), "no sweep"),
        ((*BARE, "script=tell.py", "script.inputs=[gone]"), "script.inputs=[gone]: there is no such file or folder on"),
        ((*BARE, "script=tell.py", "cluster.python=/nowhere/python3"), "/nowhere/python3"),
    ],
)
def test_a_request_that_needs_python_on_the_host_is_refused_and_leaves_nothing(old, words, says):
    done = old.type(*old.words, *words)
    assert done.code in (2, 3) and says in done.err and "Traceback" not in done.err
    assert old.runs() == []
    assert not selection.run_names(run_roots.remote())


def test_a_submission_that_is_cut_anywhere_starts_its_run_once_or_not_at_all(old, tmp_path):
    with Proxy(old.sshd.port) as proxy:
        known = tmp_path / "known-proxy"
        known.write_text(f"[127.0.0.1]:{proxy.port} {old.sshd.key}\n")
        changes = {"Port": str(proxy.port), "UserKnownHostsFile": str(known)}
        old.config = configuration(tmp_path, old.testbed, **changes)
        began = proxy.up
        old.submit(*BARE, "script=tell.py")
        size = proxy.up - began
        for part in (0.5, 0.7, 0.85, 0.95, 0.999):
            host.close_all()
            before = set(old.runs())
            proxy.cut_after_up = proxy.up + int(size * part)
            done = old.type(*old.words, *BARE, "script=tell.py", f"name=n{int(part * 1000)}")
            proxy.cut_after_up = None
            assert "Traceback" not in done.err
            new = set(old.runs()) - before
            assert len(new) <= 1 and (done.code == 3 or new == set(done.out.split())), done.err
            for run in new:
                old.until(run, "done")
                assert old.attempts(run) == [1]


RUN = run_ids.new_id(0.0)


def test_a_running_run_is_seen_where_bash_can_make_no_temporary_file(tmp_path):
    """Before bash 5.1 a here-document or here-string is such a file."""
    folder = tmp_path / "20260102-030405-calm-fox"
    (folder / "attempts").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as running:
        process = processes.identity(running.pid)
        store.write_json(folder / "status.json", {"state": "running", "process": processes.to_json(process)})
        text = bash_session.program("look", ["/mnt", folder.name], "MARK")
        full = f"mount --bind {tmp_path} /mnt && mount -t tmpfs -o nr_inodes=1 none /tmp"
        argv = ["unshare", "--mount", "bash", "-c", f"{full} && exec env BASH_COMPAT=5.0 bash --norc -s"]
        done = subprocess.run(argv, input=text, capture_output=True, text=True)
        running.kill()
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine may not mount a tmpfs")
    assert f"MARK alive {process.pid} {process.start}\n" in done.stdout


def test_rm_there_keeps_code_that_another_of_many_runs_names_and_what_a_link_calls_a_trash(tmp_path):
    code, outside = tmp_path / ".code" / ("a" * 64), tmp_path / "outside/old"
    code.mkdir(parents=True)
    outside.mkdir(parents=True)
    os.utime(outside, (0, 0))
    (tmp_path / ".trash").symlink_to(outside.parent)
    runs = [tmp_path / run_ids.cell_id("20260102-030405-calm-fox", index, 1500) for index in range(1500)]
    for run in runs:
        run.mkdir()
        (run / "plan.json").touch()
    for run in (runs[0], runs[-1]):
        store.write_json(run / "plan.json", {"code": code.name})

    def remove(run):
        text = bash_session.program("remove", ["", "yes", str(tmp_path), run.name], "MARK")
        subprocess.run(["bash", "-c", "ulimit -s 256 && exec bash --norc -s"], input=text, text=True, check=True)

    remove(runs[0])
    assert code.exists() and outside.exists() and not runs[0].exists()
    remove(runs[-1])
    assert not code.exists() and runs[1].exists()


def test_a_request_that_is_cut_off_is_not_carried_out():
    """Without the end of its words `remove` would delete a run root. Nothing is run here: bash only reads it."""
    text = bash_session.program("remove", ["yes", "yes", "/no/such/root", RUN], "mark")
    start = text.rindex("\n", 0, -1) + 1
    for end in (*range(start + 1, len(text) - 1, 6), len(text)):
        read = subprocess.run(["bash", "--norc", "-n"], input=text[:end].encode(), capture_output=True)
        assert (read.returncode == 0) == (end == len(text)), text[start:end]


LIES = {
    "a-path": "say here b 1 aA==; say exists; say file ../../owned 1 1.000000000 aGk=; say next",
    "another-file": "say here b 1 aA==; say exists; say file .bashrc 1 1.000000000 aGk=; say next",
    "no-base64": "say here b 1 aA==; say exists; say file plan.json 1 1.000000000 '*'; say next",
    "a-number": "say here b 1 aA==; say exists; say attempt 99999999999999999999; say next",
    "a-time": "say here b 1 aA==; say exists; say file plan.json 1 nan e30=; say next",
    "a-clock": "say here b now aA==; say exists; say next",
    "a-word": "say here b 1 aA==; say owned; say next",
    "too-few": "say here b 1 aA==",
    "too-many": "say here b 1 aA==; say exists; say next; say exists; say next",
    "no-end": "say here b 1 aA==; while :; do printf %9999s x; done",
}


def answer(request, lie, monkeypatch):
    real = bash_files.text("launcher.ssh", "bash_requests.sh")
    monkeypatch.setattr(bash_files, "text", lambda package, name: f"{real}on_{request}() {{\n{lie}\n}}\n")


def test_false_facts_of_gpus_are_refused(old, monkeypatch):
    texts = "for name in host user home cwd system python run_root packages; do tell_of $name x; done"
    answer("probe", f"{texts}; tell_of uid 1; tell_of cpus 1; tell_of fields a,b; tell_of gpus 1,2", monkeypatch)
    error = old.refused("plan", *old.words, *BARE, "script=tell.py", code=3)
    assert "sent data that the protocol does not allow: fields of GPUs" in error


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_invalid_answer_is_refused(old, lie, monkeypatch, tmp_path):
    answer("look", lie, monkeypatch)
    monkeypatch.setattr(bash_session, "LONGEST_ANSWER", 2**20)
    question = {"root": str(old.root), "id": RUN, "stamps": {}, "arms": []}
    with pytest.raises(BadAnswer, match="sent data that the protocol does not allow"):
        list(Host(address(old.config)).stream("look", runs=[question], follow=False))
    assert not list(tmp_path.rglob("owned"))
