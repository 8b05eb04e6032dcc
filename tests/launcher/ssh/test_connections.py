"""Real connections to the testbed's sshd, and every way in which they are refused."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.runs.address import check_destination
from launcher.ssh import session
from launcher.ssh.archive import archive
from launcher.ssh.stream import KEPT
from tests.launcher.ssh import ways
from tests.launcher.ssh.far import until
from tests.launcher.ssh.ways import address, configuration, hello, keys, refusal

both = pytest.mark.parametrize("transport", ["fabric", "openssh"])


@both
@pytest.mark.parametrize("hops", [False, True])
def test_a_host_answers_through_either_transport_with_and_without_a_hop(tmp_path, testbed, transport, hops):
    assert hello(configuration(tmp_path, testbed, hops=hops), transport=transport)["system"] == "Linux"


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"UserKnownHostsFile": "/dev/null"},
        {"UserKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "no"},
        {"hop_UserKnownHostsFile": "/dev/null", "hops": True},
    ],
    ids=["target", "checking-no", "hop"],
)
def test_an_unknown_host_key_is_refused(tmp_path, testbed, transport, changes):
    assert "host key" in refusal(configuration(tmp_path, testbed, **changes), transport=transport).lower()


def fingerprint(public: str) -> str:
    return subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True).stdout.split()[1]


@both
@pytest.mark.parametrize("at", ["target", "hop"])
def test_a_changed_host_key_is_refused(tmp_path, testbed, transport, at):
    known, other = tmp_path / "known_hosts", keys(tmp_path, name="other").with_suffix(".pub").read_text()
    ports = {"target": testbed.ssh.port, "hop": testbed.ssh.bastion_port}
    known.write_text("".join(f"[{testbed.ssh.host}]:{port} {other}" for port in ports.values()))
    changes = {
        "hop": {"hop_UserKnownHostsFile": str(known), "hops": True},
        "target": {"UserKnownHostsFile": str(known)},
    }
    message = refusal(configuration(tmp_path, testbed, **changes[at]), transport=transport)
    first, *others = message.splitlines()
    assert "is not the one that is known" in first and first.endswith("Somebody may be listening in"), (
        "as `ls` shows it"
    )
    assert "If the host was really set up anew" in message and "accept it" not in message
    assert fingerprint(f"{testbed.folder}/ssh/host-sshd{'-bastion' * (at == 'hop')}.pub") in first
    forget = next(shlex.split(line) for line in others if "ssh-keygen" in line)
    assert str(known) in forget and f"[{testbed.ssh.host}]:{ports[at]}" in forget


def test_the_commands_in_refusals_of_changed_and_unknown_keys_work(tmp_path, testbed):
    known = tmp_path / "known_hosts"
    known.write_text(f"[{testbed.ssh.host}]:{testbed.ssh.port} {keys(tmp_path).with_suffix('.pub').read_text()}")
    config = configuration(tmp_path, testbed, UserKnownHostsFile=str(known))
    forget, accept = refusal(config).splitlines()[-2:]
    subprocess.run(shlex.split(forget), check=True, capture_output=True)
    assert known.read_text() == ""
    unknown = refusal(config)
    assert unknown.splitlines()[-1] == accept
    assert known.read_text() == "", "nothing is accepted by itself"
    assert fingerprint(f"{testbed.folder}/ssh/host-sshd.pub") in unknown
    *words, append, to = shlex.split(accept)
    assert (append, to) == (">>", str(known))
    known.write_text(subprocess.run(words, capture_output=True, text=True).stdout)
    assert hello(config)


def test_several_hops_are_visited_in_the_order_of_the_configuration(tmp_path):
    from launcher.ssh.strict_connection import connection

    config = tmp_path / "config"
    config.write_text("Host box\n  ProxyJump first,second\n")
    assert [hop.host for hop in connection(address(str(config))).hops()] == ["first", "second", "box"]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_that_a_host_rejects_are_reported_as_rejected(tmp_path, testbed, kind):
    config = configuration(tmp_path, testbed, IdentityFile=str(keys(tmp_path, kind=kind)))
    assert "rejects your keys (Authentication failed.); copy your public key there" in refusal(config)
    assert re.search("Permission denied.*ssh-copy-id", refusal(config, transport="openssh"))


def test_a_key_with_a_passphrase_is_taken_from_the_agent_that_holds_it(tmp_path, testbed, monkeypatch, agent):
    locked = tmp_path / "locked"
    shutil.copyfile(testbed.ssh.key, locked)
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", str(locked)], check=True)
    config = configuration(tmp_path, testbed, IdentityFile=str(locked))
    assert hello(config)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert f"the key {locked} has a passphrase and is in no agent: run `ssh-add` first" in refusal(config)
    named = configuration(tmp_path, testbed, IdentityFile=str(locked), IdentityAgent=str(agent))
    assert f"export SSH_AUTH_SOCK={agent}" in refusal(named)


@both
def test_a_key_that_only_the_agent_holds_is_used(tmp_path, testbed, agent, transport):
    assert hello(configuration(tmp_path, testbed, IdentityFile="", IdentitiesOnly=""), transport=transport)


def test_a_key_that_the_agent_does_not_sign_with_is_named_and_the_next_one_is_offered(tmp_path, testbed, monkeypatch):
    """As when a person denies its use, or has taken the token out."""
    config = configuration(tmp_path, testbed, IdentityFile="/no/such/key", IdentitiesOnly="no")
    (tmp_path / "one").mkdir()
    with ways.agent(tmp_path / "one", f"-c {keys(tmp_path)}") as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert "the agent does not sign with its key test, and no other key is accepted" in refusal(config)
    with ways.agent(tmp_path, f"-c {tmp_path}/id", testbed.ssh.key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert hello(config)


def test_openssh_uses_an_open_master_without_any_key(tmp_path, testbed, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    control = tmp_path / "master"
    open_config = configuration(tmp_path, testbed, ControlPath=str(control))
    master = ["ssh", "-F", open_config, "-N", "-M", "-o", "BatchMode=yes", "box"]
    with subprocess.Popen(master, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: control.exists() or process.poll() is not None)
            bare = configuration(tmp_path, testbed, ControlPath=str(control), IdentityFile="/dev/null")
            assert hello(bare, transport="openssh")
        finally:
            process.terminate()
    assert "master" in refusal(bare, transport="openssh")


@both
def test_a_closed_port_and_an_unknown_host_are_named(tmp_path, testbed, transport):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert str(port) in refusal(configuration(tmp_path, testbed, Port=str(port)), transport=transport)
    unknown = refusal(configuration(tmp_path, testbed), "no-such-host.invalid", transport=transport)
    assert "no-such-host.invalid" in unknown


@pytest.fixture
def program(testbed):
    """Programs where the far user can run them, gone at the end."""
    made = []

    def make(name: str, line: str) -> str:
        path = Path(testbed.shared, f"{name}-{os.getpid()}")
        made.append(path)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        return str(path)

    yield make
    for path in made:
        path.unlink()


@both
def test_a_python_that_is_missing_or_too_old_is_refused_with_what_to_do(tmp_path, testbed, program, transport):
    config = configuration(tmp_path, testbed)
    missing = refusal(config, python="/no/such/python3", transport=transport)
    assert "/no/such/python3" in missing and "cluster.python=" in missing
    # What an older interpreter finds first: its own number.
    old = program("old", 'exec python3 -c "import sys; sys.version_info = (3, 8, 2); exec(sys.argv[1])" "$2"')
    refused = refusal(config, python=old, transport=transport)
    assert "3.8.2" in refused and "3.10" in refused and "uv python install" in refused


@both
def test_output_without_end_at_login_is_refused(tmp_path, testbed, program, transport):
    flood = program("flood", "yes a complaint >&2 & exec yes")
    assert "prints without end at login" in refusal(configuration(tmp_path, testbed), python=flood, transport=transport)


@both
def test_complaints_without_end_of_a_started_agent_are_read_and_the_last_is_shown_clean(
    tmp_path, testbed, program, transport
):
    beat = r"head -c 65536 /dev/zero | tr '\0' x >&2; printf 'K\000\000\000\000'"
    lines = r"printf '\nlauncher-agent ready\n'; for i in $(seq 100); do BEAT; done; printf '\n\033[2Jno disk\n' >&2"
    loud = program("loud", lines.replace("BEAT", beat))
    message = refusal(configuration(tmp_path, testbed), python=loud, transport=transport)
    assert message.endswith("was lost: no disk")
    long = program("long", lines.replace("BEAT", "true") + "; head -c 20000 /dev/zero | tr '\\0' x >&2")
    message = refusal(configuration(tmp_path, testbed), python=long, transport=transport)
    assert message.endswith("was lost: " + "x" * KEPT)


@both
@pytest.mark.parametrize("word", ["ready", "need"])
def test_the_complaint_of_an_agent_that_ended_before_it_was_written_to_is_shown(
    tmp_path, testbed, program, transport, word, monkeypatch
):
    send, gone = session.Session.send, program("gone", rf"printf '\nlauncher-agent {word}\n'; echo no disk >&2")

    def late(self, data):
        self._stream.exit_code()
        time.sleep(0.2)
        send(self, data)

    monkeypatch.setattr(session.Session, "send", late)
    assert refusal(configuration(tmp_path, testbed), python=gone, transport=transport).endswith("was lost: no disk")


@both
def test_a_login_that_prints_a_byte_now_and_then_is_given_up(tmp_path, testbed, program, transport, monkeypatch):
    monkeypatch.setattr(session, "OPENING", 2.0)
    slow = program("slow", "while printf x; do sleep 0.2; done")
    refused = refusal(configuration(tmp_path, testbed), python=slow, transport=transport)
    assert "has not started a command in 2 s" in refused


@pytest.mark.alone  # others start the agent from the file that is damaged here
def test_the_agent_is_sent_once_for_its_user_alone_and_again_where_it_was_damaged(tmp_path, testbed):
    config, (digest, zipped) = configuration(tmp_path, testbed), archive()
    kept = Path(testbed.user.home, f".cache/launcher/agent-{digest}.zip")
    kept.unlink(missing_ok=True)
    assert hello(config)
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (zipped, 0o600)
    before = kept.stat().st_mtime_ns
    assert hello(config)
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(zipped[:1000])
    assert hello(config)
    assert kept.read_bytes() == zipped


def test_zips_of_versions_that_were_not_used_for_long_are_deleted(tmp_path, testbed):
    config, folder = configuration(tmp_path, testbed), Path(testbed.user.home, ".cache/launcher")
    hello(config)
    old, recent = folder / "agent-old.zip", folder / "agent-recent.zip"
    for path, days in ((old, 31), (recent, 29)):
        path.touch()
        os.utime(path, (time.time() - days * 86400,) * 2)
        os.chown(path, testbed.user.uid, testbed.user.gid)
    hello(config)
    assert not old.exists() and recent.exists()
    recent.unlink()


@pytest.mark.parametrize(
    "destination", ["-oProxyCommand=x", "a b", "box:99999", "box:0", "me@", "", "[::1", "box:x", "a@b@c"]
)
def test_text_that_is_not_a_host_is_refused(destination):
    with pytest.raises(UsageError, match=re.escape("cluster.host=")) as caught:
        check_destination(destination, "cluster.host")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("box", (None, "box", None)),
        ("me@box.example:2222", ("me", "box.example", 2222)),
        ("me@[fe80::1]:22", ("me", "fe80::1", 22)),
    ],
)
def test_an_address_has_user_host_and_port(text, parts):
    place = address("", text)
    assert (place.user, place.host, place.port) == parts


def test_a_server_that_does_not_speak_ssh_is_one_line_of_error():
    """In a process of its own: pytest takes what is logged, and Python prints it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        hanging_up = threading.Thread(target=lambda: server.accept()[0].close())
        hanging_up.start()
        words = ("cluster=ssh", f"cluster.host=me@127.0.0.1:{server.getsockname()[1]}", "cluster.ssh_config=/dev/null")
        argv = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True)
        hanging_up.join(timeout=10)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "does not speak SSH as expected" in line
