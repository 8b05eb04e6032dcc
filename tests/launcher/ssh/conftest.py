from __future__ import annotations

import os
import shutil
import types
import uuid
from pathlib import Path

import pytest

from launcher.executors import backends
from launcher.runs import selection, store
from launcher.ssh import host, session
from tests.launcher.ssh import ways
from tests.launcher.ssh.far import Far
from tests.launcher.ssh.hostile import Hostile
from tests.launcher.ssh.trainer import PROGRAM
from tests.launcher.ssh.victim import Victim


@pytest.fixture
def far(tmp_path, testbed, monkeypatch, capfd):
    """The testbed's user over SSH, with a run root of the test's own there."""
    monkeypatch.setattr(host, "SILENCE", 20.0)
    there = Path(testbed.shared, f"ssh-{uuid.uuid4().hex[:8]}")
    there.mkdir(mode=0o755)
    os.chown(there, testbed.user.uid, testbed.user.gid)
    python = there / "python"
    python.write_text(PROGRAM)
    python.chmod(0o755)
    far = Far(testbed=testbed, there=there, python=python, config=ways.configuration(tmp_path, testbed), capfd=capfd)
    yield far
    host.close_all()
    backends.end({str(run.folder): store.load(str(run.folder)) for run in selection.newest([str(far.root)], 1000)}, 0)
    shutil.rmtree(there, ignore_errors=True)


@pytest.fixture
def agent(tmp_path, testbed, monkeypatch):
    """The socket of an ssh-agent that holds the testbed's key, as in SSH_AUTH_SOCK."""
    with ways.agent(tmp_path, testbed.ssh.key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    return Hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def victim(tmp_path, liar, capfd, monkeypatch):
    liar.says("")
    liar.as_process = False
    # Only a session looks it up there: the liar itself opens real streams by the same module.
    monkeypatch.setattr(session, "transport", types.SimpleNamespace(open_stream=liar.open_stream))
    yield Victim(tmp_path, liar, capfd, monkeypatch)
    host.close_all()
