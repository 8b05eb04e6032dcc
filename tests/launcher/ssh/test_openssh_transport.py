"""What errors of ssh become for a user, and how its streams are read, without a connection."""

from __future__ import annotations

import os

import pytest

from launcher.ssh.openssh_transport import OpenSsh, explanation
from launcher.ssh.stream import KEPT, Stalled

MORE = "; `ssh` with the same words shows more"


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        ("", f"it prints nothing{MORE}"),
        ("a warning\n\nConnection refused\n", f"Connection refused{MORE}"),
        ("config: Bad option\nconfig: terminating, 1 bad option", f"config: Bad option{MORE}"),
        ("sh: no-such: not found\nConnection closed by UNKNOWN port 65535", f"sh: no-such: not found{MORE}"),
        ("No key\nHost key verification failed.", "host key verification failed; connect once with `ssh` itself"),
        ("me@box: Permission denied (publickey).", "me@box: Permission denied (publickey).; check the user's name"),
    ],
)
def test_a_complaint_is_told_with_what_to_do(complaint, told):
    assert explanation("box", complaint).startswith(f"ssh can't connect to box: {told}")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ssh-keygen -f '/my known' -R '[box]:2'", "ssh-keygen -f '/my known' -R '[box]:2'"),
        ("ssh-keygen -f /known -R box; id", "ssh-keygen -R HOST"),
        ("ssh-keygen -f /known -x box", "ssh-keygen -R HOST"),
        ("rm -f /known -R box", "ssh-keygen -R HOST"),
        ("ssh-keygen -f", "ssh-keygen -R HOST"),
        ("it's no command", "ssh-keygen -R HOST"),
    ],
)
def test_of_a_changed_host_key_only_a_command_that_forgets_it_is_shown(line, command):
    told = explanation("box", f"@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nSHA256:{'a' * 43}.\n  {line}\n")
    assert f"it shows SHA256:{'a' * 43}, and" in told and told.splitlines()[2] == f"  {command}"
    assert "it shows another one." in explanation("box", "REMOTE HOST IDENTIFICATION HAS CHANGED")


def test_what_is_written_to_stderr_is_kept_and_delays_no_output():
    stream = OpenSsh(["sh", "-c", f"head -c {2**18} /dev/zero | tr '\\0' x >&2; exec 2>&-; read line; echo $line"])
    assert os.getsid(stream._child.pid) != os.getsid(0), "which Ctrl-C in the terminal would end"
    with pytest.raises(Stalled):
        stream.read(0.5)
    stream.write(b"hello\n", 5.0)
    assert stream.read(60.0) == b"hello\n"
    assert (stream.exit_code(), stream.complaint()) == (0, "x" * KEPT)
    assert stream.read(60.0) == b""
    stream.close()


def test_what_is_not_read_at_the_other_end_stalls():
    stream = OpenSsh(["sleep", "600"])
    with pytest.raises(Stalled):
        stream.write(bytes(2**21), 0.2)
    stream._child.kill()
    stream.close()
