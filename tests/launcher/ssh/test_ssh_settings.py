"""What people write into their SSH configuration holds for the launcher as it does for ssh."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from launcher.errors import Unavailable, UsageError
from launcher.runs.address import Address
from launcher.ssh import ssh_settings
from tests.launcher.run_folders import until
from tests.launcher.ssh.ways import address, configuration, hello, keys, refusal


def settings(tmp_path, text: str, destination: str = "box") -> ssh_settings.Settings:
    path = tmp_path / "config"
    path.write_text(text)
    return ssh_settings.of(address(str(path), destination))


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("Host b?x !bux\n  HostName 10.0.0.7\n  User mei\n  Port 2222\n", "box"),
        ("Host=box\nHostName 10.0.0.7\nUser=mei\nPort = 2222\nHost *\n User other\n Port 1\n", "box"),
        ("Host box\n HostName 10.0.0.7\nMatch originalhost box\n User mei\n Port 2222\n", "box"),
        ("Host box\n HostName 10.0.0.7\n User other\n Port 1\n", "mei@box:2222"),
        ("Host box\n  HostName 10.0.0.7\n User mei\n Port 2222\n ForwardAgent /no/such\n ConnectTimeout none\n", "box"),
    ],
)
def test_host_user_and_port_are_those_that_ssh_uses(tmp_path, text, destination):
    reached = settings(tmp_path, text, destination)
    assert (reached.host, reached.user, reached.port) == ("10.0.0.7", "mei", 2222)


def test_included_files_and_match_by_the_user_of_the_address_are_read(tmp_path):
    (tmp_path / "work.conf").write_text("Match user mei\n HostName 10.0.0.7\n")
    assert settings(tmp_path, f"Include {tmp_path}/*.conf\n", "mei@box").host == "10.0.0.7"


def test_a_machine_without_the_program_ssh_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match=r"needs the program ssh, .* \(Debian: openssh-client\)"):
        settings(tmp_path, "")


def test_tokens_and_variables_are_expanded(tmp_path, monkeypatch):
    key = tmp_path / "key-mei-box"
    key.touch()
    monkeypatch.setenv("KEYS", str(tmp_path))
    files = " IdentityFile ${KEYS}/key-%r-%k\n IdentityFile /no/such/key\n"
    expanded = settings(tmp_path, f"Host box\n HostName h\n{files} ProxyCommand x %h:%p %r %n 100%%\n", "mei@box:7")
    assert expanded.keys == (str(key),), "a file that is missing is skipped"
    assert expanded.command == "x h:7 mei box 100%"


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("Host box\n ProxyJump me@first:22,second\n", ["me@first:22", "second"]),
        ("Host box\n ProxyJump ssh://me@first:2222\n", ["me@first:2222"]),
        ("Host box\n ProxyJump none\nHost *\n ProxyJump first\n", []),
        ("Host *\n ProxyJump you@box\n", []),
    ],
)
def test_hops_are_those_of_proxyjump(tmp_path, text, hops):
    assert [hop.destination for hop in settings(tmp_path, text).hops] == hops


def test_a_circular_proxyjump_is_refused(tmp_path):
    from launcher.ssh.strict_connection import connection

    path = tmp_path / "config"
    path.write_text("Host box\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(UsageError, match="circular: box, a, b, a"):
        connection(Address(destination="box", config=str(path)))


def test_a_connection_takes_the_way_of_its_host_and_names_it_in_a_refusal_of_its_key(tmp_path):
    from launcher.ssh.strict_connection import Strict, connection

    path, key = tmp_path / "config", paramiko.Ed25519Key(filename=str(keys(tmp_path)))
    hosts = "Host box\n ProxyCommand x %h\n HostKeyAlias b\nHost far\n ProxyJump mei@hop\n Port 9\nHost hop\n Port 7\n"
    path.write_text(f"{hosts}Host *\n UserKnownHostsFile /dev/null\n")
    for name, gateway, known, accept in (
        ("box", "x box", "b", "ssh-keyscan -t ed25519 -p 22 box | sed 's/^[^ ]*/b/' >> /dev/null"),
        ("far", "hop", "[far]:9", "ssh -p 7 mei@hop ssh-keyscan -t ed25519 -p 9 far >> /dev/null"),
        ("hop", None, "[hop]:7", "ssh-keyscan -t ed25519 -p 7 hop >> /dev/null"),
    ):
        way = connection(Address(destination=name, config=str(path)))
        assert (way.gateway.host if isinstance(way.gateway, Strict) else way.gateway or None) == gateway
        with pytest.raises(Unavailable) as refused:
            way.client._policy.missing_host_key(way.client, name, key)
        first, *_, last = str(refused.value).splitlines()
        assert first.startswith(f"the host key of {known} is not known: ssh-ed25519 SHA256:")
        assert last == f"  {accept}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Host box\n Hostnam x\n", "line 2: Bad configuration option: hostnam"),
        ("Host box\n RevokedHostKeys /etc/hosts\n", "cluster.transport=openssh"),
    ],
)
def test_an_option_that_is_not_supported_is_refused(tmp_path, text, says):
    with pytest.raises(UsageError, match=says):
        settings(tmp_path, text)


def test_a_hop_has_a_hop_of_its_own_and_its_host_is_reached(tmp_path, testbed):
    config = configuration(tmp_path, testbed, hops=True, hop_ProxyJump="before")
    before = tmp_path / "before"
    before.mkdir()
    text = Path(configuration(before, testbed)).read_text().replace("Host box", "Host before")
    Path(config).write_text(Path(config).read_text() + text)
    assert hello(config)["system"] == "Linux"


def test_a_proxy_command_is_run_by_a_shell(tmp_path, testbed):
    through = f"ssh -F {tmp_path}/ssh_config -W %h:%p hop 2>/dev/null"
    config = configuration(tmp_path, testbed, hops=True, ProxyJump="", ProxyCommand=through)
    assert hello(config)["system"] == "Linux"
    # That the program has ended is noticed, else this would wait for an hour.
    refused = refusal(configuration(tmp_path, testbed, ProxyCommand="no-such-program %h"), connect_timeout=3600)
    assert "be reached through its ProxyCommand, no-such-program 127.0.0.1" in refused


def test_a_configuration_that_is_never_read_to_its_end_is_refused_and_its_commands_end(tmp_path, monkeypatch):
    monkeypatch.setattr(ssh_settings, "SECONDS", 0.5)
    (tmp_path / "waits").write_text(f"echo $$ >{tmp_path}/pid; sleep 1000\n")
    with pytest.raises(Unavailable, match=r"^ssh -G .*has not ended in .* does a Match exec"):
        settings(tmp_path, f'Match exec "sh {tmp_path}/waits"\n User mei\n')
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not Path("/proc", pid).exists())
