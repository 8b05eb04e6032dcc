"""The line that long work shows: it changes on a terminal and goes away; nothing of it is in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launcher import waiting

from .terminal import Terminal, screen_of

SOON = "from launcher import waiting; waiting.FIRST = waiting.EVERY = 0.01"
WORK = f"""\
{SOON}
import sys
with waiting.counted(range(3), "planning: {{}} of {{}}") as each:
    for number in each:
        sys.stdin.readline()
print("planned")
"""
PLAN = f"{SOON}; from launcher.__main__ import main; main(['plan', 'amp=o0', 'seed=range(0,200)'])"


def at_a_terminal(text: str, more: str = "") -> Terminal:
    return Terminal(["sh", "-c", f'stty -echo {more}; exec "{sys.executable}" -c "$0"', text])


def test_a_terminal_shows_how_far_it_is_and_nothing_of_it_afterwards() -> None:
    person = at_a_terminal(WORK)
    for done in range(3):
        person.expect(f"planning: {done} of 3  0s")
        person.type("")
    person.all_shown()
    assert screen_of(person.raw) == ["planned"]


def test_a_line_that_is_said_stands_above_it() -> None:
    text = f"{SOON}\nwith waiting.shown(lambda: 'fetching'): input(); waiting.say('the connection was lost'); input()"
    person = at_a_terminal(text)
    person.expect("fetching  0s")
    person.type("")
    person.expect("the connection was lost\n.*fetching  0s")
    person.type("")
    assert person.wait() == 0
    person.close()


def test_a_pipe_gets_nothing_of_short_work_and_a_line_now_and_then_of_long_work() -> None:
    for seldom, shown in (("60.0", ""), ("0.01", "planning: 0 of 3  0s\n")):
        text = WORK.replace("import sys", f"import sys, time; waiting.SELDOM = {seldom}").replace(
            "sys.stdin.readline()", "time.sleep(0.05)"
        )
        ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (0, "planned\n")
        assert ended.stderr.startswith(shown) and bool(ended.stderr) is bool(shown) and "\x1b" not in ended.stderr


def test_a_line_is_cut_to_the_terminal() -> None:
    text = f"{SOON}\nwith waiting.shown(lambda: 'x' * 500): input()"
    person = at_a_terminal(text, "cols 40")
    person.expect("x{39}")
    person.type("")
    assert "x" * 40 not in person.all_shown()


def test_planning_many_cells_shows_them(tmp_path: Path) -> None:
    person = Terminal([sys.executable, "-c", PLAN], {**os.environ, "HOME": str(tmp_path)})
    person.expect("of 200  ")
    person.expect("a sweep of 200 runs")
    person.close()


def test_an_error_ends_it() -> None:
    try:
        with waiting.counted([1], "{} of {}") as each:
            for _ in each:
                raise ValueError
    except ValueError:
        import threading

        assert not [thread for thread in threading.enumerate() if thread.name.endswith("(_show)")]
