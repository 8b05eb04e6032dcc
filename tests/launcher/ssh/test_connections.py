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

from launcher.errors import Unavailable, UsageError
from launcher.ssh.host import Host, hello
from tests.launcher.ssh import ways
from tests.launcher.ssh.far import until
from tests.launcher.ssh.ways import address, configuration, keys


@pytest.fixture
def reach():
    """Hosts that are closed at the end."""
    opened = []

    def make(*arguments, **more):
        opened.append(Host(address(*arguments, **more)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def refusal(host: Host) -> str:
    with pytest.raises(Unavailable) as caught:
        host.ask("hello", hello)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("hops", [False, True])
def test_a_host_answers_through_either_transport_with_and_without_a_hop(tmp_path, testbed, reach, transport, hops):
    host = reach(configuration(tmp_path, testbed, hops=hops), transport=transport)
    assert host.ask("hello", hello)["system"] == "Linux"


def test_user_and_port_of_the_address_override_the_configuration(tmp_path, testbed, reach):
    config = configuration(tmp_path, testbed, User="nobody", Port="1")
    assert reach(config, destination=f"{testbed.ssh.user}@box:{testbed.ssh.port}").ask("hello", hello)


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_an_unknown_host_key_is_refused_at_the_target_and_at_the_hop(tmp_path, testbed, reach, transport):
    empty = tmp_path / "known_hosts"
    empty.touch()
    for changes in ({"UserKnownHostsFile": str(empty)}, {"hop_UserKnownHostsFile": str(empty), "hops": True}):
        said = refusal(reach(configuration(tmp_path, testbed, **changes), transport=transport))
        assert "host key" in said.lower(), said
    assert empty.read_text() == ""


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_changed_host_key_is_refused_at_the_target_and_at_the_hop(tmp_path, testbed, reach, transport):
    other = (tmp_path / "known_hosts", keys(tmp_path, name="other").with_suffix(".pub").read_text())
    ports = (testbed.ssh.port, testbed.ssh.bastion_port)
    other[0].write_text("".join(f"[{testbed.ssh.host}]:{port} {other[1]}" for port in ports))
    for changes in ({"UserKnownHostsFile": str(other[0])}, {"hop_UserKnownHostsFile": str(other[0]), "hops": True}):
        said = refusal(reach(configuration(tmp_path, testbed, **changes), transport=transport))
        first, *others = said.splitlines()
        assert "is not the one that is known" in first and "Somebody may be listening in" in first
        assert "If the host was really set up anew" in said and "accept it" not in said
        public = f"{testbed.folder}/ssh/host-sshd{'-bastion' if 'hops' in changes else ''}.pub"
        shown = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True).stdout
        assert shown.split()[1] in first
        forget = next(shlex.split(line) for line in others if "ssh-keygen" in line)
        assert str(other[0]) in forget
        assert f"[{testbed.ssh.host}]:{ports['hops' in changes]}" in forget


def test_the_commands_in_refusals_of_changed_and_unknown_keys_work(tmp_path, testbed, reach):
    known = tmp_path / "known_hosts"
    known.write_text(f"[{testbed.ssh.host}]:{testbed.ssh.port} {keys(tmp_path).with_suffix('.pub').read_text()}")
    config = configuration(tmp_path, testbed, UserKnownHostsFile=str(known))
    forget, accept = refusal(reach(config)).splitlines()[-2:]
    subprocess.run(shlex.split(forget), check=True, capture_output=True)
    assert known.read_text() == ""
    public = ["ssh-keygen", "-lf", f"{testbed.folder}/ssh/host-sshd.pub"]
    unknown = refusal(reach(config))
    assert unknown.splitlines()[-1] == accept
    assert subprocess.run(public, capture_output=True, text=True).stdout.split()[1] in unknown
    *words, append, to = shlex.split(accept)
    assert (append, to) == (">>", str(known))
    known.write_text(subprocess.run(words, capture_output=True, text=True).stdout)
    assert reach(config).ask("hello", hello)


def test_stricthostkeychecking_no_accepts_no_unknown_key(tmp_path, testbed, reach):
    config = configuration(tmp_path, testbed, UserKnownHostsFile="/dev/null", StrictHostKeyChecking="no")
    for transport in ("fabric", "openssh"):
        assert "host key" in refusal(reach(config, transport=transport)).lower()


def test_several_hops_are_visited_in_the_order_of_the_configuration(tmp_path, testbed):
    from launcher.ssh.strict_connection import connection

    config = tmp_path / "config"
    config.write_text("Host box\n  ProxyJump first,second\n")
    assert [each.host for each in connection(address(str(config))).hops()] == ["first", "second", "box"]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_that_a_host_rejects_are_reported_as_rejected(tmp_path, testbed, reach, kind):
    config = configuration(tmp_path, testbed, IdentityFile=str(keys(tmp_path, kind=kind)))
    assert "rejects your keys (Authentication failed.); copy your public key there" in refusal(reach(config))
    assert "Permission denied" in refusal(reach(config, transport="openssh"))


def test_a_key_with_a_passphrase_is_taken_from_the_agent_that_holds_it(tmp_path, testbed, reach, monkeypatch, agent):
    locked = tmp_path / "locked"
    shutil.copyfile(testbed.ssh.key, locked)
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", str(locked)], check=True)
    assert reach(configuration(tmp_path, testbed, IdentityFile=str(locked))).ask("hello", hello)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    said = refusal(reach(configuration(tmp_path, testbed, IdentityFile=str(locked))))
    assert f"the key {locked} has a passphrase and is in no agent: run `ssh-add` first" in said
    named = configuration(tmp_path, testbed, IdentityFile=str(locked), IdentityAgent=str(agent))
    assert f"export SSH_AUTH_SOCK={agent}" in refusal(reach(named))


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_an_agent_holds_the_key(tmp_path, testbed, reach, agent, transport):
    config = configuration(tmp_path, testbed, IdentityFile="", IdentitiesOnly="")
    assert reach(config, transport=transport).ask("hello", hello)


def test_a_key_that_the_agent_does_not_sign_with_is_named_and_the_next_one_is_offered(
    tmp_path, testbed, reach, monkeypatch
):
    """As when a person denies its use, or has taken the token out."""
    config = configuration(tmp_path, testbed, IdentityFile="/no/such/key", IdentitiesOnly="no")
    (tmp_path / "one").mkdir()
    with ways.agent(tmp_path / "one", f"-c {keys(tmp_path)}") as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert "the agent does not sign with its key test, and no other key is accepted" in refusal(reach(config))
    with ways.agent(tmp_path, f"-c {tmp_path}/id", testbed.ssh.key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert reach(config).ask("hello", hello)


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_identitiesonly_keeps_other_keys_of_the_agent_from_the_host(tmp_path, testbed, reach, agent, transport):
    other = keys(tmp_path)
    said = refusal(reach(configuration(tmp_path, testbed, IdentityFile=str(other)), transport=transport))
    assert "rejects your keys" in said or "Permission denied" in said
    other.unlink()
    other.with_suffix(".pub").write_text(Path(f"{testbed.ssh.key}.pub").read_text())
    named = configuration(tmp_path, testbed, IdentityFile=str(other))
    assert reach(named, transport=transport).ask("hello", hello), "the agent has the key of this public one"


def test_openssh_uses_an_open_master_without_any_key(tmp_path, testbed, reach, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    control = tmp_path / "master"
    open_config = configuration(tmp_path, testbed, ControlPath=str(control))
    master = ["ssh", "-F", open_config, "-N", "-M", "-o", "BatchMode=yes", "box"]
    with subprocess.Popen(master, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: control.exists() or process.poll() is not None)
            bare = configuration(tmp_path, testbed, ControlPath=str(control), IdentityFile="/dev/null")
            assert reach(bare, transport="openssh").ask("hello", hello)
        finally:
            process.terminate()
    assert "master" in refusal(reach(bare, transport="openssh"))


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_closed_port_and_an_unknown_host_are_named(tmp_path, testbed, reach, transport):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert str(port) in refusal(reach(configuration(tmp_path, testbed, Port=str(port)), transport=transport))
    config = configuration(tmp_path, testbed)
    said = refusal(reach(config, destination="no-such-host.invalid", transport=transport))
    assert "no-such-host.invalid" in said


def test_a_host_that_accepts_a_connection_and_stays_silent_times_out(tmp_path, testbed, reach):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = configuration(tmp_path, testbed, Port=str(silent.getsockname()[1]))
        assert "box" in refusal(reach(config, transport="openssh", connect_timeout=1))


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_a_python_that_is_missing_or_too_old_is_refused_with_what_to_do(tmp_path, testbed, reach, program, transport):
    config = configuration(tmp_path, testbed)
    said = refusal(reach(config, python="/no/such/python3", transport=transport))
    assert "/no/such/python3" in said and "cluster.python=" in said
    # What an older interpreter finds first: its own number.
    old = program("old", f'exec python3 -c "import sys; sys.version_info = (3, 8, 2); {_EXEC}" "$2"')
    said = refusal(reach(config, python=old, transport=transport))
    assert "3.8.2" in said and "3.10" in said


_EXEC = "exec(sys.argv[1])"


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


def test_output_of_login_scripts_is_ignored(tmp_path, testbed, reach, program):
    noisy = program("noisy", 'echo "Welcome! launcher-agent"; printf "no end of line"; exec python3 "$@"')
    assert reach(configuration(tmp_path, testbed), python=noisy).ask("hello", hello)


@pytest.mark.alone  # others start the agent from the file that is damaged here
def test_the_agent_is_sent_once_for_its_user_alone_and_again_where_it_was_damaged(tmp_path, testbed, reach):
    from launcher.ssh.archive import archive

    config, (digest, zipped) = configuration(tmp_path, testbed), archive()
    kept = Path(testbed.user.home, f".cache/launcher/agent-{digest}.zip")
    kept.unlink(missing_ok=True)
    assert reach(config).ask("hello", hello)
    assert kept.read_bytes() == zipped
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.stat().st_mtime_ns
    assert reach(config).ask("hello", hello)
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(zipped[:1000])
    assert reach(config).ask("hello", hello)
    assert kept.read_bytes() == zipped


def test_zips_of_versions_that_were_not_used_for_long_are_deleted(tmp_path, testbed, reach):
    folder = Path(testbed.user.home, ".cache/launcher")
    reach(configuration(tmp_path, testbed)).ask("hello", hello)
    old, recent = folder / "agent-old.zip", folder / "agent-recent.zip"
    for path, days in ((old, 31), (recent, 29)):
        path.touch()
        os.utime(path, (time.time() - days * 86400,) * 2)
        os.chown(path, testbed.user.uid, testbed.user.gid)
    reach(configuration(tmp_path, testbed)).ask("hello", hello)
    assert not old.exists() and recent.exists()
    recent.unlink()


@pytest.mark.parametrize(
    "destination", ["-oProxyCommand=x", "a b", "box:99999", "box:0", "me@", "", "[::1", "box:x", "a@b@c"]
)
def test_text_that_is_not_a_host_is_refused(destination):
    from launcher.runs.address import check

    with pytest.raises(UsageError, match=re.escape("cluster.host=")) as caught:
        check(destination, "cluster.host")
    assert caught.value.exit_code == 2


def test_an_address_has_user_host_and_port():
    for text, apart in (
        ("box", (None, "box", None)),
        ("me@box.example:2222", ("me", "box.example", 2222)),
        ("me@[fe80::1]:22", ("me", "fe80::1", 22)),
    ):
        found = address("", text)
        assert (found.user, found.host, found.port) == apart


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
