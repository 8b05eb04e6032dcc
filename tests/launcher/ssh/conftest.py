from __future__ import annotations

import os
import random
import shutil
import uuid
from pathlib import Path

import pytest

from launcher.ssh import host, session
from tests.launcher.run_folders import end_all
from tests.launcher.ssh import ways
from tests.launcher.ssh.far import Far
from tests.launcher.ssh.hostile import Hostile
from tests.launcher.ssh.own_sshd import OwnSshd
from tests.launcher.ssh.trainer import PROGRAM
from tests.launcher.ssh.victim import Victim
from tests.testbed.proxy import Proxy


@pytest.fixture
def far(tmp_path, testbed, monkeypatch, capfd):
    """The testbed's user over SSH, with a run root of the test's own there."""
    monkeypatch.setattr(host, "SILENCE", 20.0)
    there = Path(testbed.shared, f"ssh-{uuid.uuid4().hex[:8]}")
    there.mkdir(mode=0o755)
    os.chown(there, testbed.user.uid, testbed.user.gid)
    far = Far(testbed=testbed, there=there, config=ways.configuration(tmp_path, testbed), capfd=capfd)
    far.program("python", PROGRAM)
    yield far
    host.close_all()
    end_all(far.root)
    shutil.rmtree(there, ignore_errors=True)


@pytest.fixture
def own_sshd(tmp_path, testbed):
    """Starts an sshd of the test's own with lines of configuration."""
    servers = []

    def start(**changes: str) -> OwnSshd:
        servers.append(OwnSshd(testbed, tmp_path, **changes))
        return servers[-1]

    yield start
    host.close_all()
    for server in servers:
        server.kill()


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
    monkeypatch.setattr(session, "open_stream", liar.open_stream)
    yield Victim(tmp_path, liar, capfd, monkeypatch)
    host.close_all()


@pytest.fixture
def moments(request):
    """Random numbers that the seed in FAULT_SEED repeats."""
    seed = int(os.environ.get("FAULT_SEED") or random.randrange(2**32))
    print(f"FAULT_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def proxy(far, tmp_path):
    """Between the launcher and the far sshd; known to that by its own port."""
    with Proxy(far.testbed.ssh.port) as proxy:
        key = Path(far.testbed.ssh.known_hosts).read_text().splitlines()[0].partition(" ")[2]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{proxy.port} {key}\n")
        far.config = ways.configuration(tmp_path, far.testbed, Port=str(proxy.port), UserKnownHostsFile=str(known))
        yield proxy
        host.close_all()
