"""Submissions over SSH: what is refused, interrupted, or done twice at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from launcher.executors.ssh import submit_client
from launcher.runs import run_roots, selection
from launcher.ssh import host
from tests.launcher.ssh.far import HOLD, asked, before_requests, until
from tests.launcher.ssh.ways import configuration


def test_an_impossible_request_is_refused_and_leaves_nothing(far):
    for words, code, says in (
        (["run_root=/proc/x"], 2, "run_root=/proc/x"),
        (["run_root=/root/x"], 2, "not writable for rehearsal"),
        (["python=/no/such/python"], 2, "/no/such/python can't be run"),
        (["python=/bin/false"], 2, "can't be run"),
        (["framework=tensorflow"], 2, "tensorflow"),
        (["data=mnist", "data.dir=/no/such/data"], 2, "/no/such/data is not a folder"),
        (["gpus=3"], 2, "gpus=3"),
        (["secrets.A=/no/such/file"], 2, "no such file"),
        (["cluster.transport=telnet"], 2, "is not one of fabric, openssh"),
        (["cluster.ssh_config=/no/such/config"], 2, "/no/such/config"),
        (["cluster.host=box,other"], 2, "cluster.host=box,other is not a host"),
        (["cluster.host=nowhere.invalid"], 3, "no host nowhere.invalid"),
        (["cluster.python=/no/such/python3"], 3, "cluster.python="),
        (["after=nosuch"], 2, "nosuch"),
    ):
        done = far.type(*far.words, *words)
        assert done.code == code and says in done.err, (words, done.err)
        assert "Traceback" not in done.err
        assert far.runs() == []
        assert selection.run_names(run_roots.remote()) == []


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("printf '\\nlauncher-agent old 3.6.8 /usr/bin/python3\\n'", "has Python 3.6.8 (/usr/bin/python3)"),
        ("exit 127", "has no python3 that could be run"),
    ],
)
def test_a_host_without_a_python_for_the_agent_is_refused_with_where_to_get_one(far, own_sshd, tmp_path, program, says):
    (far.there / "old").mkdir()
    far.program("old/python3", f"#!/bin/sh\n{program}\n")
    far.config = configuration(tmp_path, far.testbed, **own_sshd(SetEnv=f"PATH={far.there}/old:/usr/bin:/bin").lines)
    error = far.refused(*far.words, "steps=1", code=3)
    assert says in error and "`uv python install 3.12`" in error
    assert far.runs() == [] and selection.run_names(run_roots.remote()) == []


def test_a_host_has_to_be_named(far):
    assert "needs cluster.host=me@host" in far.refused("cluster=ssh")


def test_two_launchers_submit_at_the_same_time(far):
    command = [sys.executable, "-m", "launcher", *far.words, "steps=1"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    names = []
    for process in started:
        out, err = process.communicate()
        assert process.returncode == 0, err
        names += out.split()
    assert len(set(names)) == 2
    for name in names:
        far.until(name, "done")
    assert len([folder for folder in (far.root / ".code").iterdir() if folder.is_dir()]) == 1
    assert not list((far.root / ".code").glob(".submitting*"))


def test_a_host_that_kills_processes_at_logout_is_reported_before_a_start(far, tmp_path):
    planned = json.loads(far.type("plan", *far.words, "--json").out)
    assert planned["facts"]["ends_at_logout"] is False
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps({**planned["facts"], "ends_at_logout": True}))
    assert "loginctl enable-linger" in far.type("plan", *far.words, "--facts", str(recorded)).out


def test_a_run_waits_for_another_on_its_host(far, monkeypatch):
    (first,) = far.submit("steps=3", HOLD)
    with asked(monkeypatch) as requests:
        (second,) = far.submit("steps=1", f"after={first}")
    assert requests == ["probe", "has_code", "submit"], "the code is sent once"
    (anyway,) = far.submit("steps=1", f"after=any:{first}")
    far.until(second, "queued")
    host.close_all()  # nobody here has to stay for it
    until(lambda: f"waiting for {first}, which it comes after" in far.type("ls", second).out)
    assert far.state(anyway) == "queued"
    assert far.type("cancel", "--now", first).code == 0
    assert far.until(second, "cancelled", "done") == "cancelled"
    assert f"it was to come after {first}, which is cancelled" in far.type("ls", second).out
    assert far.until(anyway, "cancelled", "done") == "done"


@pytest.mark.parametrize(("moment", "left"), [("send_code", 0), ("reserve", 0), ("_hand_over", 1)])
def test_ctrl_c_during_a_submission_shows_the_run_or_leaves_nothing(far, monkeypatch, moment, left):
    real = getattr(submit_client, moment)

    def pressed(*arguments):
        done = real(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return done

    monkeypatch.setattr(submit_client, moment, pressed)
    done = far.type(*far.words, "steps=3", HOLD)
    assert done.code == 130, done.err
    names = far.runs()
    assert len(names) == left and names == done.out.split() == selection.run_names(run_roots.remote())
    if left:
        assert f"`cancel {names[0]}` ends it" in done.err
        assert far.type("cancel", "--now", *names).code == 0


def test_ctrl_c_while_a_host_is_slow_to_answer_is_answered_at_once(far, monkeypatch):
    answered = []

    def wait(host, request):
        if request == "submit":
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(60)
            answered.append(request)

    with before_requests(monkeypatch, wait):
        done = far.type(*far.words, "steps=3", HOLD)
    assert (done.code, answered) == (130, [])
    (name,) = done.out.split()
    assert selection.run_names(run_roots.remote()) == [name]
    assert f"{name} may have been started or not" in done.err
