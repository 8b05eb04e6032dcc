"""Why no agent starts, by what a command prints and how it ends. No connection."""

from __future__ import annotations

import pytest

from launcher.errors import Unavailable
from launcher.runs.address import Address
from launcher.ssh import fabric_transport, openssh_transport, session
from launcher.ssh.bootstrap import MARK
from launcher.ssh.failures import Lost
from launcher.ssh.session import Session
from launcher.ssh.stream import Stalled

NO_COMMAND = "box accepts the login but runs no command"


class Command:
    """A `Stream` of a command that has ended."""

    def __init__(self, printed: str, complaint: str, code: int | None) -> None:
        self.printed, self.text, self.code, self.closed = printed.encode(), complaint, code, False

    def read(self, timeout: float) -> bytes:
        part, self.printed = self.printed, b""
        return part

    def write(self, data: bytes, timeout: float) -> None:
        pass

    def complaint(self) -> str:
        return self.text

    def exit_code(self) -> int | None:
        return self.code

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("transport", "printed", "complaint", "code", "told"),
    [
        ("openssh", "", "Connection refused", 255, "ssh can't connect to box: Connection refused; "),
        ("openssh", "", "a\nb", 1, f"{NO_COMMAND} (exit code 1): b"),
        ("fabric", "", "a\nb", 255, f"{NO_COMMAND} (exit code 255): b"),
        ("fabric", "no shell", "", None, f"{NO_COMMAND}: no shell"),
        ("fabric", "", "", 0, f"{NO_COMMAND}: a login script there "),
        ("fabric", "", "sh: python3: not found", 127, "box has no python3 that could be run (sh: python3: not found)"),
        (
            "fabric",
            f"hello\n{MARK} old 3.8.1 /bin/python3\n",
            "",
            0,
            "box has Python 3.8.1 (/bin/python3), and 3.10 or",
        ),
        (
            "fabric",
            f"{MARK} error full: /home\n",
            "",
            0,
            "box can't keep the launcher's agent in ~/.cache/launcher: fu",
        ),
        ("fabric", f"{MARK} need\n", "a\nkilled", 1, "the connection to box was lost: killed"),
        ("fabric", "x" * (session.NOISE + 1), "", None, "box prints without end at login and starts no command"),
    ],
)
def test_a_command_that_starts_no_agent_is_told_by_what_it_left(monkeypatch, transport, printed, complaint, code, told):
    command = Command(printed, complaint, code)
    monkeypatch.setattr(session, "open_stream", lambda address, text: command)
    with pytest.raises(Unavailable) as refused:
        Session(Address(destination="box", transport=transport), 1.0)
    assert str(refused.value).startswith(told) and command.closed
    assert isinstance(refused.value, Lost) is ("was lost" in told)


def test_a_wait_ends_at_the_deadline_of_the_answer_or_after_the_silence(monkeypatch):
    command = Command(f"{MARK} ready\n", "", None)
    monkeypatch.setattr(session, "open_stream", lambda address, text: command)
    opened = Session(Address(destination="box"), 7.0)
    waited = []

    def stall(seconds: float) -> bytes:
        waited.append(seconds)
        raise Stalled

    monkeypatch.setattr(command, "read", stall)
    monkeypatch.setattr(session.time, "monotonic", lambda: 100.0)
    for deadline, error in ((100.0, session.Overdue), (103.0, session.Overdue), (107.0, Lost), (1000.0, Lost)):
        opened.deadline = deadline
        with pytest.raises(error):
            opened.receive(10)
    assert waited == [3.0, 7.0, 7.0]


def test_an_address_chooses_its_transport(monkeypatch):
    for name, module in (("openssh", openssh_transport), ("fabric", fabric_transport)):
        monkeypatch.setattr(module, "opened", lambda address, command, name=name: name)
        assert session.open_stream(Address(destination="box", transport=name), "true") == name
