"""The deadline of an answer, and when a session is closed. No connection, and no time passes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from launcher.runs.address import Address
from launcher.ssh import host
from launcher.ssh.failures import BadAnswer
from launcher.ssh.host import STEADY, Host
from launcher.ssh.methods import REQUESTS
from launcher.ssh.session import Overdue

SECONDS = 10.0
END = {"answer": 7}


class Session:
    """Gives each answer after so many seconds."""

    def __init__(self, answers: list[tuple[float, Any]]) -> None:
        self.answers, self.now, self.deadline, self.closed = iter(answers), 0.0, 0.0, False

    def monotonic(self) -> float:
        return self.now

    def send(self, data: bytes) -> None:
        pass

    def receive(self, longest: int) -> Any:
        seconds, answer = next(self.answers)
        self.now += seconds
        if self.now > self.deadline:
            raise Overdue
        return answer

    def close(self) -> None:
        self.closed = True


def asking(monkeypatch: pytest.MonkeyPatch, *answers: tuple[float, Any]) -> tuple[Host, Session]:
    session = Session([*answers])
    monkeypatch.setattr(host, "time", session)
    monkeypatch.setitem(REQUESTS, "hello", REQUESTS["hello"]._replace(seconds=SECONDS))
    asked = Host(Address(destination="box"))
    monkeypatch.setattr(asked, "_session", session)
    return asked, session


@pytest.mark.parametrize(
    ("answers", "more", "in_time"),
    [
        ([(9, END)], 0.0, True),
        ([(11, END)], 0.0, False),
        ([(11, END)], 2.0, True),
        ([(6, {"item": 1}), (6, END)], 0.0, True),
        ([(6, bytes(STEADY)), (6, END)], 0.0, True),
        ([(6, bytes(STEADY - 1)), (6, END)], 0.0, False),
        ([(3, bytes(STEADY - 1)), (3, b"x"), (6, END)], 0.0, True),
        ([(6, {"say": "well"}), (3, END)], 0.0, True),
        ([(6, {"say": "well"}), (6, END)], 0.0, False),
    ],
)
def test_what_brings_an_answer_on_renews_its_deadline_and_one_that_is_late_ends_the_session(
    monkeypatch, capsys, answers, more, in_time
):
    asked, session = asking(monkeypatch, *answers)
    stream = asked.stream("hello", more_seconds=more)
    expected = pytest.raises(StopIteration, match="7") if in_time else pytest.raises(BadAnswer, match="not answered in")
    with expected:
        while next(stream):
            session.now += 100  # what is done with it here
    assert session.closed is not in_time
    assert capsys.readouterr().err == ("box: well\n" if answers[0][1] == {"say": "well"} else "")


def test_an_answer_that_is_left_before_its_end_ends_the_session(monkeypatch):
    asked, session = asking(monkeypatch, (1, {"item": 1}), (1, END))
    with contextlib.closing(asked.stream("hello")) as stream:
        next(stream)
    assert session.closed and asked._session is None
