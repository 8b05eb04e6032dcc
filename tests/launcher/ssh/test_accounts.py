"""Accounts as people have them: login shells of every kind, scripts that print, end or wait, and second factors.

One sshd, and a key for each kind: what it runs in the place of the account's own shell is in its authorized_keys.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from launcher.script import interactive
from launcher.ssh import host, openssh_transport
from tests.launcher.ssh.own_sshd import OwnSshd
from tests.launcher.ssh.ways import address, configuration, hello, keys, refusal

SCRIPTS = {
    "dash": ("", ""),
    "zsh": (".zshenv", "echo Welcome launcher-agent; no-such-command; printf 'no end of line'; false"),
    "tcsh": (".tcshrc", "echo Welcome\nno-such-command\necho -n 'no end of line'"),
    "fish": (".config/fish/config.fish", "echo Welcome; no-such-command; printf 'no end of line'; false"),
}
"""What each shell reads though nobody sits there, and what a person put into it."""
INSTEAD = {"ending": "exit 3", "another": "exec sh -s", "waiting": "read answer; exit"}
"""What login scripts do that no command survives."""
HARD = 'it\'s "quoted" $HOME `id` !! a!b \\n \\\\ 100% é\nsecond line *'


@pytest.fixture(scope="module")
def accounts(testbed, tmp_path_factory):
    """An sshd with the keys, and the user's second factor at another."""
    folder = tmp_path_factory.mktemp("accounts")
    homes = Path(testbed.shared, f"homes-{uuid.uuid4().hex[:8]}")
    lines = []
    for name in (*SCRIPTS, *INSTEAD):
        public = keys(folder, name=name).with_suffix(".pub").read_text()
        command = INSTEAD.get(name, "")
        if name in SCRIPTS:
            script = homes / name / (SCRIPTS[name][0] or ".profile")
            script.parent.mkdir(parents=True)
            script.write_text(SCRIPTS[name][1] + "\n")
            command = f'HOME={homes / name} exec {name} -c \\"$SSH_ORIGINAL_COMMAND\\"'
        lines.append(f'command="{command}" {public}')
    authorized = homes / "authorized_keys"  # where sshd can read it as the user
    authorized.write_text("".join(lines))
    for path in (homes, *homes.rglob("*")):
        os.chown(path, testbed.user.uid, testbed.user.gid)
    server = OwnSshd(testbed, folder, AuthorizedKeysFile=str(authorized))
    try:
        yield folder, server
    finally:
        server.kill()
        shutil.rmtree(homes)


def config_of(accounts, testbed, tmp_path, name: str) -> str:
    folder, server = accounts
    return configuration(tmp_path, testbed, IdentityFile=str(folder / name), **server.lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_host_answers_through_any_login_shell_whatever_its_scripts_print(accounts, testbed, tmp_path, name):
    there = Path(testbed.shared, f"it's {uuid.uuid4().hex[:8]}")
    there.symlink_to("/usr/bin/python3")
    try:
        assert hello(config_of(accounts, testbed, tmp_path, name), python=str(there))["system"] == "Linux"
    finally:
        there.unlink()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_of_a_terminal_passes_any_login_shell_unchanged(accounts, testbed, tmp_path, name):
    ssh = openssh_transport.argv(address(config_of(accounts, testbed, tmp_path, name)), "-T")
    words = interactive.over_ssh(ssh, ["bash", "-c", 'printf "<%s>" "$@"', HARD, HARD, "na!me"])
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout.endswith(f"<{HARD}><na!me>"), done


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ending", r"runs no command \(exit code 3\): a login script there"),
        ("another", "has not started a command in 1 s: .*; or a login script there"),
        ("waiting", "has not started a command in 1 s: .*; or a login script there"),
    ],
)
def test_a_login_script_that_blocks_commands_is_named_as_the_cause(
    accounts, testbed, tmp_path, monkeypatch, name, says
):
    monkeypatch.setattr(host, "SILENCE", 1.0)
    assert re.search(says, refusal(config_of(accounts, testbed, tmp_path, name)))


def test_a_login_without_any_key_says_so(testbed, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert "asks for a key and there is none" in refusal(configuration(tmp_path, testbed, IdentityFile="/no/such/key"))


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ("password", "accepts none of your keys; it offers password"),
        ("keyboard-interactive", "accepts none of your keys; it offers keyboard-interactive"),
        ("publickey,password", "key accepted, but the server asks for a second factor"),
        ("publickey,keyboard-interactive", "key accepted, but the server asks for a second factor"),
    ],
)
def test_a_host_that_asks_for_a_password_or_code_is_reported_with_the_remedy(
    testbed, tmp_path, own_sshd, methods, says
):
    interactive_too = {"UsePAM": "yes", "KbdInteractiveAuthentication": "yes", "PasswordAuthentication": "yes"}
    config = configuration(tmp_path, testbed, **own_sshd(AuthenticationMethods=methods, **interactive_too).lines)
    assert re.search(f"{says}.*cluster.transport=openssh", refusal(config))
    assert "open a master connection" in refusal(config, transport="openssh")
