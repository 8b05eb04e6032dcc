"""Known hosts are read as ssh reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.ssh import host_keys
from tests.launcher.ssh.ways import configuration, hello, keys, refusal


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    """Two public keys of one kind."""
    folder = tmp_path_factory.mktemp("keys")
    made = [keys(folder, name=name).with_suffix(".pub") for name in ("one", "other")]
    return [" ".join(path.read_text().split()[:2]) for path in made]


def known(tmp_path: Path, text: str, host: str = "box", port: int = 22, alias: str | None = None) -> host_keys.HostKeys:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return host_keys.of_host(host, port, alias, [str(path), "/no/such/file"])


@pytest.mark.parametrize(
    ("names", "host", "port", "count"),
    [
        ("box", "box", 22, 1),
        ("box", "BOX", 22, 1),
        ("boxx", "boxx", 22, 1),  # a name that is base64 is no key
        ("*.cluster.edu", "login1.cluster.edu", 22, 1),
        ("login?.cluster.edu,!login2.cluster.edu", "login2.cluster.edu", 22, 0),
        ("[box]:2222", "box", 2222, 1),
        ("[box]:2222", "box", 22, 0),
    ],
)
def test_names_and_patterns_of_known_hosts(tmp_path, pair, names, host, port, count):
    assert len(known(tmp_path, f"{names} {pair[0]} a comment\n", host, port).keys) == count


@pytest.mark.parametrize(("name", "host", "port"), [("box", "Box", 22), ("[box]:2222", "box", 2222)])
def test_names_may_be_hashed(tmp_path, pair, name, host, port):
    path = tmp_path / "known_hosts"
    path.write_text(f"{name},other {pair[0]}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", path], check=True, capture_output=True)
    assert path.read_text().count("|1|") == 2
    assert len(host_keys.of_host(host, port, None, [str(path)]).keys) == 1
    assert not host_keys.of_host("box2", port, None, [str(path)]).keys


def test_a_name_may_have_several_keys_an_alias_and_a_key_without_port(tmp_path, pair):
    text = f"box {pair[0]}\nbox {pair[1]}\n"
    assert len(known(tmp_path, text).keys) == 2
    assert known(tmp_path, text, port=2222)[:2] == ((), known(tmp_path, text).keys)
    assert known(tmp_path, text, "elsewhere", 2222, "box").keys == known(tmp_path, text).keys


def test_a_damaged_line_is_ignored_and_hides_no_other(tmp_path, pair):
    assert len(known(tmp_path, f"box\nbox ssh-rsa !!\n|1|x|y {pair[0]}\nbox ssh-ed25519\nbox {pair[0]}\n").keys) == 1


def test_a_mark_counts_for_the_port_and_for_the_bare_name(tmp_path, pair):
    one, other = known(tmp_path, f"box {pair[0]}\nbox {pair[1]}\n").keys
    for names in ("box", "[box]:2222", "*"):
        for mark in ("@revoked", "@cert-authority"):
            found = known(tmp_path, f"{mark} {names} {pair[0]}\n", port=2222)
            assert (bool(found.revoked), found.authority) == (mark == "@revoked", mark == "@cert-authority")
            assert not (found.keys or found.without_port)
    found = known(tmp_path, f"box {pair[0]}\n[box]:2222 {pair[1]}\n", port=2222)
    assert found == host_keys.HostKeys((other,), (one,))


def test_why_a_key_is_refused_says_what_is_known_and_what_to_do(tmp_path, pair):
    one, other = known(tmp_path, f"box {pair[0]}\nbox {pair[1]}\n").keys
    third = host_keys.Key("ssh-rsa", b"another")

    def why(shown: host_keys.Key, **known: object) -> str:
        return host_keys.refusal(shown, host_keys.HostKeys(**known), "box", "ACCEPT", "FORGET")  # type: ignore[arg-type]

    assert why(one, keys=(other, one)) == why(one, keys=(other,), without_port=(one,)) == ""
    assert "is marked as @revoked" in why(one, keys=(one,), revoked=(one,))
    changed = why(one, keys=(third, other))
    assert f"shows {one.fingerprint}, and {other.fingerprint} is known" in changed  # the known one of its kind
    assert changed.endswith("\n  FORGET\n  ACCEPT")
    assert f"{third.fingerprint} is known" in why(one, keys=(third,))
    assert (
        why(one) == f"the host key of box is not known: {one.fingerprint}\nIf that is its own, accept it with\n  ACCEPT"
    )
    assert "cluster.transport=openssh. Otherwise, if that is its own" in why(one, authority=True)
    assert [host_keys.name_of("box", port) for port in (22, 2222)] == ["box", "[box]:2222"]


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("{name} {wrong}\n{name} {right}\n", ""),
        ("127.0.0.* {right}\n", ""),
        ("alias {right}\n", ""),
        ("@revoked * {right}\n{name} {right}\n", "is marked as @revoked"),
        ("127.0.0.1 {wrong}\n", "is not known"),
        ("@cert-authority * {wrong}\n", "say cluster.transport=openssh"),
    ],
)
def test_a_real_host_is_accepted_by_the_same_lines_as_by_ssh(tmp_path, testbed, pair, lines, refused):
    name, _, right = Path(testbed.ssh.known_hosts).read_text().splitlines()[0].partition(" ")
    file = tmp_path / "known"
    file.write_text(lines.format(name=name, right=right, wrong=pair[0]))
    alias = {"HostKeyAlias": "alias"} if lines.startswith("alias") else {}
    config = configuration(tmp_path, testbed, UserKnownHostsFile=str(file), **alias)
    assert refused in refusal(config) if refused else hello(config)
    ssh = ["ssh", "-F", config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "box", "true"]
    assert (subprocess.run(ssh, capture_output=True).returncode == 0) == (not refused)


def test_a_host_certificate_is_accepted_by_openssh_only(tmp_path, testbed, own_sshd):
    authority, key = keys(tmp_path, name="authority"), keys(tmp_path, name="host")
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-h", "-n", "127.0.0.1", key.with_suffix(".pub")]
    subprocess.run(sign, check=True)
    server = own_sshd(HostKey=str(key), HostCertificate=f"{key}-cert.pub")
    server.known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {authority.with_suffix('.pub').read_text()}")
    config = configuration(tmp_path, testbed, **server.lines)
    assert "say cluster.transport=openssh" in refusal(config)
    assert hello(config, transport="openssh")
